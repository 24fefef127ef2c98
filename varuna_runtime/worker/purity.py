"""What a forward must leave as it was: inputs, parameters, buffers and the modules' own attributes (E7).

Sees changes; allows none, and undoes none.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from varuna_runtime.worker.bits import is_same_tensor

_FULL_LOOKS = 4
_FULL_LOOK_EVERY = 16
_MAX_DEPTH = 4
_MAX_ITEMS = 256  # of a list or dict whose items are looked at; longer ones are tables, not state
_MAX_BYTES = 1 << 16  # of an array that is compared by value
_OF_TORCH = frozenset(vars(nn.Module()))  # attributes that every module has
_STATELESS = ("torch.", "varuna_runtime.")  # packages whose modules keep no state in attributes
_ABSENT = torch.empty(0)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))

Parts = tuple[object, ...]  # equal if and only if nothing was changed


@dataclass(frozen=True, slots=True)
class Look:
    """What is there at a moment; keeps it alive, so that no new object can pass for an old one."""

    is_full: bool  # else of the tensors alone
    tensors: list[Tensor]  # inputs first
    versions: list[int]
    shapes: list[tuple[bool, int, int, int]]  # of each module: in training, numbers of what it holds
    attributes: dict[str, Parts]
    copies: list[tuple[str, Tensor, Tensor]]  # name, tensor, and its values then


class Watch:
    """Tells what one segment's forward changed.

    Every time: inputs and tensors by identity and version. The first few times and now and then, as it costs
    more than a small forward: other attributes by value. The first time also the bits of the tensors, because
    a write through `.data` leaves the version alone.
    """

    def __init__(self, module: nn.Module) -> None:
        owned = _owned_tensors(module)
        self._tensors = [name for name, _, _ in owned]
        self._places = [(owner, key) for _, owner, key in owned]
        self._parts = list(module.named_modules())
        self._modules = [
            (f"{name}." if name else "", vars(part), _OF_TORCH | _hook_names(part))
            for name, part in module.named_modules()
            if not type(part).__module__.startswith(_STATELESS)
        ]
        self._num_looks = 0
        self._known: tuple[list[Tensor], list[int]] | None = None  # as the last forward left it

    def begin(self) -> None:
        """Begin a step: what was there before may have changed between two steps."""
        self._known = None

    def look(self, inputs: Sequence[Tensor]) -> Look:
        """Return the state before a forward."""
        at = self._num_looks
        self._num_looks += 1
        is_full = at < _FULL_LOOKS or at % _FULL_LOOK_EVERY == 0
        held = self._held() if self._known is None or is_full else self._known
        seen = self._seen(inputs, held, is_full=is_full)
        if at == 0:
            names = self._names(len(inputs))
            seen.copies.extend(
                (name, t, t.detach().clone()) for name, t in zip(names, seen.tensors, strict=True)
            )
        return seen

    def changes(self, before: Look, inputs: Sequence[Tensor]) -> list[str]:
        """Return the local names of what is not as it was."""
        self._known = self._held()
        after = self._seen(inputs, self._known, is_full=before.is_full)
        changed: set[str] = set()
        if after.versions != before.versions or not all(map(is_, after.tensors, before.tensors)):
            marks = [zip(map(id, look.tensors), look.versions, strict=True) for look in (before, after)]
            changed = {name for name, a, b in zip(self._names(len(inputs)), *marks, strict=True) if a != b}
        if before.shapes != after.shapes:
            pairs = zip(self._parts, before.shapes, after.shapes, strict=True)
            changed |= {_described(name, was, now) for (name, _), was, now in pairs if was != now}
        if before.attributes != after.attributes:
            names = before.attributes.keys() | after.attributes.keys()
            changed |= {n for n in names if before.attributes.get(n) != after.attributes.get(n)}
        changed |= {name for name, t, copy in before.copies if not is_same_tensor(t, copy)}
        return sorted(changed)

    def _held(self) -> tuple[list[Tensor], list[int]]:
        """Return the module's tensors and their versions; quick, for no cache holds this code meanwhile."""
        here = [owner.get(key) for owner, key in self._places]
        tensors = [_ABSENT if tensor is None else tensor for tensor in here]
        return tensors, [tensor._version for tensor in tensors]

    def _seen(self, inputs: Sequence[Tensor], held: tuple[list[Tensor], list[int]], *, is_full: bool) -> Look:
        tensors = [*inputs, *held[0]]
        versions = [*[tensor._version for tensor in inputs], *held[1]]
        if not is_full:
            return Look(False, tensors, versions, [], {}, [])
        shapes = [
            (part.training, len(part._parameters), len(part._buffers), len(part._modules))
            for _, part in self._parts
        ]
        visited: set[int] = set()
        attributes = {
            prefix + key: tuple(_parts(value, _MAX_DEPTH, visited))
            for prefix, held, others in self._modules
            for key, value in held.items()
            if key not in others
        }
        return Look(True, tensors, versions, shapes, attributes, [])

    def _names(self, num_inputs: int) -> list[str]:
        return [*(f"input {i}" for i in range(num_inputs)), *self._tensors]


def _described(name: str, was: tuple[bool, int, int, int], now: tuple[bool, int, int, int]) -> str:
    what = "training" if was[0] != now[0] else "the set of parameters, buffers and modules"
    return f"{what} of {name}" if name else what


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """Equal to itself alone, however its object compares."""

    value: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _parts(value: object, depth: int, visited: set[int]) -> Iterator[object]:
    """Yield what changes when `value` does; an object that several places hold is looked into once."""
    if isinstance(value, _PLAIN):
        yield type(value)
        yield value if value == value else "nan"
        return
    yield _Same(value)
    if isinstance(value, Tensor):
        yield value._version
    elif (state := _state_of_generator(value)) is not None:
        yield state
    elif isinstance(value, np.ndarray):
        yield value.tobytes() if value.nbytes <= _MAX_BYTES else None
    elif depth and id(value) not in visited:
        visited.add(id(value))
        for item in _items(value):
            yield from _parts(item, depth - 1, visited)


def _items(value: object) -> list[object]:
    """Return what a container or a plain object holds; nothing of modules, functions and classes."""
    if isinstance(value, nn.Module | type) or callable(value):
        return []
    if isinstance(value, dict):
        found: list[object] = [part for pair in value.items() for part in pair]
    elif isinstance(value, list | tuple | set | frozenset | deque):
        found = list(value)
    else:
        found = [part for pair in getattr(value, "__dict__", {}).items() for part in pair]
    return found if len(found) <= _MAX_ITEMS else [len(found)]


def _state_of_generator(value: object) -> object:
    """Return the state of a random generator of torch, numpy or Python; None for anything else."""
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, nn.Module | type):
        return None
    bits = getattr(value, "bit_generator", None) or getattr(value, "_bit_generator", None)
    if bits is not None:
        return repr(bits.state)
    state = getattr(value, "getstate", None)
    return state() if callable(state) else None


def _hook_names(module: nn.Module) -> frozenset[Any]:
    """Return the attributes that torch's own pre-forward hooks compute, as weight_norm and pruning do."""
    hooks = module._forward_pre_hooks.values()
    return frozenset(getattr(hook, key, None) for hook in hooks for key in ("name", "_tensor_name"))


def _owned_tensors(module: nn.Module) -> list[tuple[str, dict[str, Tensor | None], str]]:
    """Return (local name, the dict that holds it, its key there) of every parameter and buffer."""
    return [
        (f"{name}.{key}" if name else key, owner, key)
        for name, part in module.named_modules()
        for owner in (cast(dict[str, Tensor | None], part._parameters), part._buffers)
        for key in owner
    ]
