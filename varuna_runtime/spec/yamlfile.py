"""Text of a strict YAML 1.2 file -> a pydantic record, or every mistake in it with its line."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml.nodes import MappingNode

from varuna_runtime.spec.hints import value_hint
from varuna_runtime.spec.mistakes import Mark, Mistake, Path, dotted
from varuna_runtime.spec.schema import Schema, closest
from varuna_runtime.spec.yamltext import Draft, compose, described, mapping, nearest

__all__ = ["Draft", "Located", "read"]

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Located(Generic[M]):
    """A valid record together with where each of its keys was written."""

    value: M
    source: str
    marks: Mapping[Path, Mark]

    def mistake(self, path: Path, *, seen: str, wanted: str, hint: str = "") -> Mistake:
        """Return a mistake at the line of `path`, or of the nearest key above it that was written."""
        mark = nearest(self.marks, path)
        return Mistake(source=self.source, mark=mark, path=dotted(path), seen=seen, wanted=wanted, hint=hint)


def read(
    kind: type[M], text: str, *, source: str, cross_checks: Callable[[Draft], None] | None = None
) -> Located[M] | tuple[Mistake, ...]:
    """Return the record, or all mistakes in the order of their lines.

    `cross_checks` looks at relations between keys; it also runs when single keys are wrong,
    so that a person sees everything at once.
    """
    draft = Draft(source=source, schema=Schema(kind))
    node = compose(text, draft)
    if node is None:
        return draft.sorted_mistakes()
    if not isinstance(node, MappingNode):
        draft.add((), seen=described(node), wanted="a mapping of keys to values, such as `name: my-job`")
        return draft.sorted_mistakes()
    draft.plain = mapping(node, (), draft)
    draft.schema = draft.schema.of(draft.plain)
    value = _validated(kind, draft)
    if cross_checks is not None:
        cross_checks(draft)
    if draft.mistakes or value is None:
        return draft.sorted_mistakes()
    return Located(value=value, source=source, marks=draft.marks)


def _validated(kind: type[M], draft: Draft) -> M | None:
    try:
        # As JSON, because pydantic's strict mode then takes lists as tuples and text as enums.
        return kind.model_validate_json(json.dumps(draft.plain))
    except ValidationError as err:
        for path in _failed_paths((_location(e) for e in err.errors()), draft):
            _explain(path, draft)
        return None


def _location(error: ErrorDetails) -> Path:
    """Return where pydantic saw the error; a key that names the kind of a record is a place of its own."""
    key = str(error.get("ctx", {}).get("discriminator", "")).strip("'")
    return (*error["loc"], key) if error["type"].startswith("union_tag") else error["loc"]


def _failed_paths(locations: Iterable[Path], draft: Draft) -> tuple[Path, ...]:
    """Map pydantic's locations, which also name union branches, to paths of the file."""
    paths: dict[Path, None] = {}
    for location in locations:
        path = location = _without_kinds(location, draft)
        while path and path not in draft.marks and draft.schema.wanted(path) is None:
            path = path[:-1]
        # A wrong key of an open mapping is located at (..., key, "[key]").
        paths[(*path, "[key]") if location[len(path) :] == ("[key]",) else path] = None
    # A list whose items are wrong is also too short to pydantic, which counts the right ones only.
    return tuple(path for path in paths if not any(_is_inside(other, path) for other in paths))


def _is_inside(path: Path, outer: Path) -> bool:
    return len(path) > len(outer) and path[: len(outer)] == outer


def _without_kinds(location: Path, draft: Draft) -> Path:
    """Leave out the kind that pydantic names between an item of a list and its keys."""
    path: Path = ()
    for part in location:
        is_kind = bool(path) and isinstance(path[-1], int) and part in draft.schema.kinds(path[:-1])
        path = path if is_kind else (*path, part)
    return path


def _explain(path: Path, draft: Draft) -> None:
    if path[-1:] == ("[key]",):
        wanted = draft.schema.wanted_key(path[:-2])
        draft.add(path[:-1], seen=f"the key `{path[-2]}`", wanted=wanted)
        return
    wanted = draft.schema.wanted(path) or ""
    if path not in draft.marks:
        draft.add(path, seen="nothing", wanted=wanted, hint=f"add the line `{path[-1]}: ...`")
    elif not wanted:
        _explain_unknown(path, draft)
    else:
        hint = value_hint(draft, path, wanted)
        draft.add(path, seen=draft.seen(path), wanted=wanted, hint=hint)


def _explain_unknown(path: Path, draft: Draft) -> None:
    known = draft.schema.keys(path[:-1])
    key = str(path[-1])
    match = closest(key, known) or next((dotted(place) for place in draft.schema.places(key)), "")
    wanted = "a known key" if match else f"one of {', '.join(sorted(known))}"
    hint = f"did you mean `{match}`?" if match else ""
    draft.add(path, seen=f"the unknown key `{key}`", wanted=wanted, hint=hint)
