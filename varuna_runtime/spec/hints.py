"""What to do about a value that does not fit: the last part of a mistake's line."""

import re

from ruamel.yaml.nodes import ScalarNode

from varuna_runtime.spec.mistakes import Path
from varuna_runtime.spec.schema import closest
from varuna_runtime.spec.yamltext import DECIMAL, Draft, tag_name

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def value_hint(draft: Draft, path: Path, wanted: str) -> str:
    """Return advice for the scalar at `path`, or an empty text."""
    node = draft.nodes.get(path)
    if not isinstance(node, ScalarNode):
        return ""
    text = str(node.value)
    match = closest(text, draft.schema.choices(path))
    if "number" in wanted and (advice := _number_hint(text, str(path[-1]), is_quoted=bool(node.style))):
        return advice
    if match:
        return f'did you mean "{match}"?'
    is_text_wanted = "text" in wanted or "name" in wanted
    if is_text_wanted and not node.style and tag_name(node) in ("int", "float", "bool"):
        return f'quote it: "{text}"'
    return ""


def _number_hint(text: str, key: str, *, is_quoted: bool) -> str:
    seconds = _seconds(text)
    if is_quoted and DECIMAL.fullmatch(text):
        return f"remove the quotes: {text}"
    if key.endswith("_s") and seconds is not None:
        return f"write the seconds: {seconds:g}"
    if re.fullmatch(r"[-+]?[0-9]{1,18}(\.0*|\.?[0-9]*e\+?[0-9])", text) and float(text).is_integer():
        return f"write {int(float(text))}"
    if re.fullmatch(r"[0-9]+(:[0-9]+)+", text):
        return "colons do not make a number in YAML 1.2; write the number itself"
    return ""


def _seconds(text: str) -> float | None:
    """Return what a person may have meant by 90s, 5m, 2h, 1d, 1:30 or 1:00:00."""
    if found := re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([smhd])", text):
        return float(found[1]) * _UNITS_S[found[2]]
    if re.fullmatch(r"[0-9]{1,9}(:[0-9]{1,2}){1,2}", text):
        total = 0
        for part in text.split(":"):
            total = total * 60 + int(part)
        return float(total)
    return None
