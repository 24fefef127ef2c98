"""Text of a YAML 1.2 file -> plain values with the line of each, and what is odd about its writing.

Owns what a person may write: no tags, anchors, aliases, odd numbers or duplicate keys. Never opens a file.
"""

import json
import math
import re
from collections.abc import Mapping

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, NodeEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from varuna_runtime.spec.mistakes import Mark, Mistake, Path, dotted
from varuna_runtime.spec.schema import Schema

MAX_BYTES = 64 * 1024
MAX_DEPTH = 16
MAX_DIGITS = 18
DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)")


class Draft:
    """A file being read: what was written where, and the mistakes so far."""

    def __init__(self, *, source: str, schema: Schema) -> None:
        self.source = source
        self.schema = schema
        self.marks: dict[Path, Mark] = {(): Mark(line=1, column=1)}
        self.nodes: dict[Path, Node] = {}
        self.plain: dict[str, object] = {}
        self.mistakes: list[Mistake] = []

    def add(self, path: Path, *, seen: str, wanted: str, hint: str = "", mark: Mark | None = None) -> None:
        """Record a mistake at `mark`, or at the line of `path`."""
        where = mark or nearest(self.marks, path)
        self.mistakes.append(
            Mistake(source=self.source, mark=where, path=dotted(path), seen=seen, wanted=wanted, hint=hint)
        )

    def seen(self, path: Path) -> str:
        """Return the value at `path` as it was written."""
        node = self.nodes.get(path)
        return "nothing" if node is None else described(node)

    def whole_number(self, *path: str) -> int | None:
        """Return the number written at `path`, or None if there is none; a wrong type is told elsewhere."""
        value = self.get(*path)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def get(self, *path: str) -> object:
        """Return the plain value at `path`, None if absent."""
        value: object = self.plain
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def text(self, *path: str) -> str | None:
        """Return the text written at `path`, if it is text."""
        value = self.get(*path)
        return value if isinstance(value, str) else None

    def sorted_mistakes(self) -> tuple[Mistake, ...]:
        """Return the mistakes by line; one per place and key."""
        unique = {(m.mark.line, m.mark.column, m.path): m for m in reversed(self.mistakes)}
        return tuple(unique[key] for key in sorted(unique))


def nearest(marks: Mapping[Path, Mark], path: Path) -> Mark:
    """Return the mark of the longest written prefix of `path`."""
    while path not in marks and path:
        path = path[:-1]
    return marks.get(path, Mark(line=1, column=1))


def compose(text: str, draft: Draft) -> Node | None:
    """Return the root of the only document, or None after adding why there is none."""
    size = len(text.encode())
    if size > MAX_BYTES:
        draft.add((), seen=f"{size} bytes", wanted=f"a file of at most {MAX_BYTES} bytes")
        return None
    try:
        if not _plain_events(text, draft):
            return None
        node: Node | None = _yaml().compose(text)
    except YAMLError as err:
        _add_syntax(err, text, draft)
        return None
    if node is None or (isinstance(node, ScalarNode) and not node.value):
        draft.add((), seen="an empty file", wanted=f"keys and values, at least {_required(draft)}")
        return None
    return node


def _required(draft: Draft) -> str:
    return ", ".join(draft.schema.required()) or "one"


def _yaml() -> YAML:
    return YAML(typ="safe", pure=True)


def _plain_events(text: str, draft: Draft) -> bool:
    """Refuse anchors, aliases, tags and deep nesting before a graph is built from them."""
    depth = 0
    before = len(draft.mistakes)
    for event in _yaml().parse(text):
        mark = _mark(event)
        if isinstance(event, AliasEvent):
            draft.add((), mark=mark, seen=f"the alias *{event.anchor}", wanted="the value written out")
        elif isinstance(event, NodeEvent) and event.anchor:
            draft.add((), mark=mark, seen=f"the anchor &{event.anchor}", wanted="no anchors or aliases")
        if getattr(event, "tag", None):
            draft.add((), mark=mark, seen=f"the tag {_short_tag(str(event.tag))}", wanted="no tags")
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > MAX_DEPTH:
            draft.add((), mark=mark, seen=f"more than {MAX_DEPTH} levels", wanted="less nesting")
            break
    return len(draft.mistakes) == before


def _short_tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")


def _add_syntax(err: YAMLError, text: str, draft: Draft) -> None:
    problem_mark = getattr(err, "problem_mark", None) or getattr(err, "context_mark", None)
    mark = Mark(line=1, column=1)
    if problem_mark is not None:
        mark = Mark(line=problem_mark.line + 1, column=problem_mark.column + 1)
    problem = str(getattr(err, "problem", None) or err).splitlines()[0]
    line = text.splitlines()[mark.line - 1] if mark.line <= len(text.splitlines()) else ""
    hint = "indent with spaces, not tabs" if "\t" in line else ""
    if "another document" in problem:
        hint = "keep one document: remove the `---` lines"
    draft.add((), mark=mark, seen=f"text that is not YAML ({problem})", wanted="YAML 1.2", hint=hint)


def _mark(item: object) -> Mark:
    start = getattr(item, "start_mark", None)
    return Mark(line=1, column=1) if start is None else Mark(line=start.line + 1, column=start.column + 1)


def mapping(node: MappingNode, path: Path, draft: Draft) -> dict[str, object]:
    """Return the plain values below `node`; `draft` gets the place of each and what is odd about it."""
    result: dict[str, object] = {}
    for key_node, value_node in node.value:
        key = _key(key_node, path, draft)
        if key is None:
            continue
        here = (*path, key)
        if key in result:
            first = draft.marks[here].line
            draft.add(
                here,
                mark=_mark(key_node),
                seen=f"the key `{key}` a second time",
                wanted=f"each key once; the first is on line {first}",
                hint="remove one of the two",
            )
            continue
        draft.marks[here] = _mark(key_node)
        result[key] = _value(value_node, here, draft)
    return result


def _key(node: Node, path: Path, draft: Draft) -> str | None:
    if isinstance(node, ScalarNode) and (node.style or tag_name(node) == "str"):
        return str(node.value)
    hint = f'quote it: "{node.value}"' if isinstance(node, ScalarNode) else ""
    draft.add(path, mark=_mark(node), seen=f"the key {described(node)}", wanted="a key of text", hint=hint)
    return None


def _value(node: Node, path: Path, draft: Draft) -> object:
    draft.nodes[path] = node
    if isinstance(node, MappingNode):
        return mapping(node, path, draft)
    if isinstance(node, SequenceNode):
        items: list[object] = []
        for index, item in enumerate(node.value):
            draft.marks[(*path, index)] = _mark(item)
            items.append(_value(item, (*path, index), draft))
        return items
    assert isinstance(node, ScalarNode)
    return _scalar(node, path, draft)


def _scalar(node: ScalarNode, path: Path, draft: Draft) -> object:
    text = str(node.value)
    if node.style:
        return text
    tag = tag_name(node)
    if tag == "null":
        return None
    if tag == "bool":
        return text.lower() == "true"
    if tag == "int":
        return _whole(text, path, draft)
    if tag == "float":
        return _finite(text, path, draft)
    return text


def _whole(text: str, path: Path, draft: Draft) -> int:
    if DECIMAL.fullmatch(text) and len(text) <= MAX_DIGITS:
        return int(text)
    if len(text) > MAX_DIGITS:
        draft.add(path, seen=f"{len(text)} digits", wanted=f"a number of at most {MAX_DIGITS} digits")
        return 1
    base = 0 if re.match(r"[-+]?0[xob]", text) else 10
    value = int(text, base)
    draft.add(
        path,
        seen=f'"{text}"',
        wanted="a plain decimal number without leading zeros, prefixes or underscores",
        hint=f"write {value}, or quote it if it is text",
    )
    return value


def _finite(text: str, path: Path, draft: Draft) -> float:
    cleaned = text.lower().replace("_", "")
    value = math.nan if "nan" in cleaned or "inf" in cleaned else float(cleaned)
    if math.isfinite(value):
        return value
    draft.add(path, seen=f'"{text}"', wanted=draft.schema.wanted(path) or "a finite number")
    return 1.0


def tag_name(node: ScalarNode) -> str:
    """Return the YAML 1.2 type of an unquoted scalar: str, int, float, bool, null."""
    return str(node.tag).rsplit(":", 1)[-1]


def described(node: Node) -> str:
    """Return a value as a message shows it."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list" if node.value else "an empty list"
    assert isinstance(node, ScalarNode)
    if not node.style and tag_name(node) == "null":
        return "nothing" if not node.value else f'"{node.value}" (nothing)'
    text = str(node.value)
    shown = text if len(text) <= 60 else text[:57] + "..."
    return json.dumps(shown, ensure_ascii=False)
