"""Evaluates an ARM template as Azure Resource Manager would, as far as our template needs it.

Knows the functions in `_FUNCTIONS` and no others, so that a mistyped one is found; references to what only
exists after a deployment (an identity's client id, an address) become `<REFERENCE>`.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/demo"
_TOKEN = re.compile(r"\s*(?:'((?:[^']|'')*)'|(-?\d+)|(\w+)|(.))", re.DOTALL)


class Deployment:
    """One template with the values of its parameters; everything it says is evaluated."""

    def __init__(self, template: Mapping[str, Any], **given: object) -> None:
        unknown = set(given) - set(template["parameters"])
        assert not unknown, f"no such parameters: {unknown}"
        self.used: set[str] = set()
        self._template = template
        self._given = given

    def resources(self) -> list[dict[str, Any]]:
        """Return every resource as it goes to its provider, without what came out null."""
        found: list[dict[str, Any]] = self.value(self._template["resources"])
        return found

    def outputs(self) -> dict[str, Any]:
        """Return the outputs by name."""
        return {name: self.value(each["value"]) for name, each in self._template["outputs"].items()}

    def value(self, node: Any) -> Any:
        """Return a part of the template, evaluated."""
        if isinstance(node, dict):
            pairs = {self.value(key): self.value(each) for key, each in node.items()}
            return {key: each for key, each in pairs.items() if each is not None}
        if isinstance(node, list):
            return [self.value(each) for each in node]
        if isinstance(node, str) and node.startswith("[") and node.endswith("]"):
            return _Expression(node[1:-1], self).value()
        return node

    def parameter(self, name: str) -> Any:
        """Return the value of a parameter."""
        self.used.add(name)
        declared = self._template["parameters"][name]
        chosen = self._given[name] if name in self._given else self.value(declared["defaultValue"])
        assert chosen in declared.get("allowedValues", [chosen])
        return chosen

    def variable(self, name: str) -> Any:
        """Return the value of a variable."""
        self.used.add(name)
        return self.value(self._template["variables"][name])


class _Expression:
    def __init__(self, text: str, deployment: Deployment) -> None:
        self._text = text
        self._deployment = deployment
        self._tokens = list(_tokens(text))

    def value(self) -> Any:
        found = self._term()
        assert not self._tokens, f"{self._text}: {self._tokens} is left over"
        return found

    def _term(self) -> Any:
        kind, text = self._tokens.pop(0)
        if kind == "text":
            return text.replace("''", "'")
        if kind == "number":
            return int(text)
        assert kind == "name", f"{self._text}: {text!r} in the place of a value"
        found = self._call(text, self._arguments())
        while self._tokens and self._tokens[0] == ("sign", "."):
            self._tokens.pop(0)
            found = found[self._tokens.pop(0)[1]]
        return found

    def _arguments(self) -> list[Any]:
        self._expect("(")
        found: list[Any] = []
        while self._tokens[0] != ("sign", ")"):
            if found:
                self._expect(",")
            found.append(self._term())
        self._expect(")")
        return found

    def _expect(self, sign: str) -> None:
        seen = self._tokens.pop(0)
        assert seen == ("sign", sign), f"{self._text}: seen {seen}, wanted {sign!r}"

    def _call(self, name: str, arguments: list[Any]) -> Any:
        if name == "parameters":
            return self._deployment.parameter(*arguments)
        if name == "variables":
            return self._deployment.variable(*arguments)
        assert name in _FUNCTIONS, f"{self._text}: no function {name}"
        return _FUNCTIONS[name](*arguments)


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for found in _TOKEN.finditer(text):
        kind = ("text", "number", "name", "sign")[found.lastindex - 1]  # type: ignore[operator]
        if kind != "sign" or found[4].strip():
            yield kind, found[found.lastindex]  # type: ignore[index]


class _Later(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return f"<{key}>"


def _resource_id(kind: str, *names: str, scope: str = GROUP) -> str:
    provider, *types = kind.split("/")
    assert len(types) == len(names), f"{kind} wants {len(types)} names, has {names}"
    return f"{scope}/providers/{provider}/" + "/".join(f"{t}/{n}" for t, n in zip(types, names, strict=True))


def _hashed(*words: str) -> str:
    return hashlib.sha256("|".join(words).encode()).hexdigest()


def _guid(*words: str) -> str:
    return re.sub(r"(.{8})(.{4})(.{4})(.{4})(.{12}).*", r"\1-\2-\3-\4-\5", _hashed(*words))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "concat": lambda *parts: (
        "".join(parts) if isinstance(parts[0], str) else [x for part in parts for x in part]
    ),
    "createArray": lambda *parts: list(parts),
    "createObject": lambda *parts: dict(zip(parts[::2], parts[1::2], strict=True)),
    "empty": lambda each: not each,
    "environment": lambda: {"suffixes": {"keyvaultDns": ".vault.azure.net"}},
    "equals": lambda a, b: a == b,
    "false": lambda: False,
    "format": lambda text, *values: text.format(*values),
    "guid": _guid,
    "if": lambda condition, yes, no: yes if condition else no,
    "json": json.loads,
    "reference": lambda _id, _version: _Later(),
    "replace": lambda text, old, new: text.replace(old, new),
    "resourceGroup": lambda: {"id": GROUP, "name": "demo", "location": "westeurope"},
    "resourceId": _resource_id,
    "subscription": lambda: {"subscriptionId": SUBSCRIPTION, "tenantId": SUBSCRIPTION},
    "subscriptionResourceId": lambda kind, *names: _resource_id(
        kind, *names, scope=f"/subscriptions/{SUBSCRIPTION}"
    ),
    "uniqueString": lambda *words: _hashed(*words)[:13],
}
