"""JSON text of the plain values that optimizers and schedulers keep; refuses what it cannot restore."""

import json
from collections import Counter

from torch import Tensor

from varuna_runtime.spec.errors import InvalidInput, ModelRefused

Plain = object  # None, bool, int, float, str, list, tuple, dict, Counter; a 0-dim tensor becomes a number


def to_text(value: Plain, *, of: str) -> str:
    """Return JSON that `from_text` turns back into an equal value; floats keep every bit."""
    return json.dumps(_encode(value, of), sort_keys=True)


def from_text(text: str) -> Plain:
    """Return the value of a text that `to_text` made."""
    return _decode(json.loads(text))


def _encode(value: Plain, of: str) -> Plain:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_encode(v, of) for v in value]
    if isinstance(value, tuple):
        return {"tuple": [_encode(v, of) for v in value]}
    if isinstance(value, dict):
        kind = "counter" if isinstance(value, Counter) else "map"
        return {kind: [[_encode(k, of), _encode(v, of)] for k, v in value.items()]}
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    raise ModelRefused(f"{of} keeps a {type(value).__name__}, which a checkpoint cannot hold")


def _decode(value: Plain) -> Plain:
    if isinstance(value, list):
        return [_decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, items),) = value.items()
    match kind:
        case "tuple":
            return tuple(_decode(v) for v in items)
        case "map":
            return {_decode(k): _decode(v) for k, v in items}
        case "counter":
            return Counter({_decode(k): _decode(v) for k, v in items})
    raise InvalidInput(f"unknown kind of value {kind!r} in optimizer or scheduler state")
