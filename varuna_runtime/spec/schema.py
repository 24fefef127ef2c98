"""What a pydantic record wants at each of its paths, in a person's words; derived from its JSON schema."""

import difflib
from collections.abc import Iterable
from typing import Any, cast

from pydantic import BaseModel

from varuna_runtime.spec.mistakes import Path

_PATTERNS = {
    "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$": (
        "a name of at most 63 lower-case letters, digits and inner hyphens"
    ),
    "^[A-Za-z_][A-Za-z0-9_]*$": "a name of letters, digits and underscores that does not begin with a digit",
    "^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$": (
        "a name of at most 40 lower-case letters, digits and inner hyphens"
    ),
    "^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$": (
        "a name of at most 200 letters, digits, `.`, `_` and `-` that begins with a letter or digit"
    ),
    "^[^\\s-]\\S*$": "[USER@]HOST or a name of ssh's configuration",
    "^[^\\s/]*$": "HOST or HOST:PORT",
}
_Json = dict[str, Any]


class Schema:
    """Answers questions about the keys of one record type."""

    def __init__(self, kind: type[BaseModel], *, values: object = None) -> None:
        self._kind = kind
        self._root = kind.model_json_schema()
        self._values = values

    def of(self, values: object) -> "Schema":
        """Return the schema where `values` choose between kinds of records, such as by a `provider` key."""
        return Schema(self._kind, values=values)

    def required(self) -> tuple[str, ...]:
        """Return the top-level keys without a default."""
        return tuple(self._root.get("required", ()))

    def keys(self, path: Path) -> tuple[str, ...]:
        """Return the keys known under `path`."""
        found = self._at(path)
        return tuple(found.get("properties", ())) if found else ()

    def wanted(self, path: Path) -> str | None:
        """Return what belongs at `path`, or None if nothing does."""
        found = self._at(path)
        return self._words(found) if found is not None else None

    def wanted_key(self, path: Path) -> str:
        """Return what a key of the open mapping at `path` must look like."""
        found = self._at(path) or {}
        pattern = found.get("propertyNames", {}).get("pattern") or next(
            iter(found.get("patternProperties", {})), ""
        )
        return _PATTERNS.get(pattern, "text")

    def choices(self, path: Path) -> tuple[str, ...]:
        """Return the words allowed at `path`, if it takes fixed words."""
        found = self._at(path)
        return tuple(str(c) for branch in self._branches(found or {}) for c in _constants(branch))

    def kinds(self, path: Path) -> tuple[str, ...]:
        """Return the names of the kinds of records that the list at `path` takes."""
        items = self._resolved((self._at(path) or {}).get("items"))
        return tuple(items.get("discriminator", {}).get("mapping", ()))

    def places(self, key: str) -> tuple[Path, ...]:
        """Return the full paths of nested keys of that name."""
        return tuple((outer, key) for outer in self.keys(()) if key in self.keys((outer,)))

    def _at(self, path: Path) -> _Json | None:
        node, value = self._root, self._values
        for part in path:
            child = self._child(node, part)
            if child is None:
                return None
            value = _item(value, part)
            node = self._chosen(self._resolved(child), value)
        return node

    def _chosen(self, node: _Json, value: object) -> _Json:
        """Return the kind of record that `value` names; one that names none has the naming key only."""
        if "discriminator" not in node:
            return node
        key, kinds = node["discriminator"]["propertyName"], node["discriminator"]["mapping"]
        named = value.get(key) if isinstance(value, dict) else None
        if isinstance(named, str) and named in kinds:
            return self._resolved({"$ref": kinds[named]})
        return {"type": "object", "properties": {key: {"enum": list(kinds)}}}

    def _child(self, node: _Json, part: str | int) -> _Json | None:
        if isinstance(part, int):
            return cast("_Json | None", node.get("items"))
        if part in node.get("properties", {}):
            return cast(_Json, node["properties"][part])
        values = node.get("additionalProperties") or next(
            iter(node.get("patternProperties", {}).values()), None
        )
        return values if isinstance(values, dict) else None

    def _resolved(self, node: _Json | None) -> _Json:
        if node is None:
            return {}
        ref = node.get("$ref")
        return cast(_Json, self._root["$defs"][ref.rsplit("/", 1)[-1]]) if ref else node

    def _branches(self, node: _Json) -> tuple[_Json, ...]:
        branches = [self._resolved(b) for b in node.get("anyOf", [node])]
        return tuple(b for b in branches if b.get("type") != "null")

    def _words(self, node: _Json) -> str:
        return " or ".join(self._branch_words(b) for b in self._branches(node))

    def _branch_words(self, node: _Json) -> str:
        constants = _constants(node)
        if constants:
            quoted = [f'"{c}"' for c in constants]
            return quoted[0] if len(quoted) == 1 else f"one of {', '.join(quoted)}"
        kind = node.get("type")
        if kind in ("integer", "number"):
            return ("a whole number" if kind == "integer" else "a number") + _bounds(node)
        if kind == "array":
            least = f" of at least {node['minItems']}" if "minItems" in node else ""
            return f"a list{least}, each item {self._words(self._resolved(node.get('items')))}"
        if "discriminator" in node:
            return f"a mapping with a `{node['discriminator']['propertyName']}`"
        if kind == "object" and "properties" in node:
            return f"a mapping of {', '.join(node['properties'])}"
        if kind == "object":
            return "a mapping of names to text"
        if kind == "boolean":
            return "true or false"
        return _PATTERNS.get(node.get("pattern", ""), "text")


def closest(word: str, known: Iterable[str]) -> str:
    """Return the known word that `word` most likely meant, or an empty text."""
    by_lower = {k.lower(): k for k in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else ""


def _item(value: object, part: str | int) -> object:
    if isinstance(value, list) and isinstance(part, int):
        return value[part] if part < len(value) else None
    return value.get(part) if isinstance(value, dict) else None


def _constants(node: _Json) -> tuple[object, ...]:
    return (node["const"],) if "const" in node else tuple(node.get("enum", ()))


def _bounds(node: _Json) -> str:
    words = []
    for key, sign in (
        ("minimum", ">="),
        ("exclusiveMinimum", ">"),
        ("maximum", "<="),
        ("exclusiveMaximum", "<"),
    ):
        if key in node and abs(node[key]) < 2**62:
            words.append(f"{sign} {node[key]:g}")
    return " " + " and ".join(words) if words else ""
