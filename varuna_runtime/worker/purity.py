"""What a forward must leave as it was: inputs, parameters, buffers and the modules' own attributes (E7).

Sees changes; allows none, and undoes none.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from varuna_runtime.worker.bits import is_same_tensor

_MAX_DEPTH = 4
_MAX_ITEMS = 256  # of a list or dict whose items are looked at; longer ones are tables, not state
_MAX_BYTES = 1 << 16  # of an array that is compared by value
_OF_TORCH = frozenset(vars(nn.Module()))  # attributes that every module has
_PLAIN = (bool, int, float, complex, str, bytes, type(None))

Parts = tuple[object, ...]  # equal if and only if nothing was changed


@dataclass(frozen=True, slots=True)
class Look:
    """The state before a forward; keeps what it saw alive, so that no new object can pass for an old one."""

    seen: dict[str, Parts]
    copies: list[tuple[str, Tensor, Tensor]]  # name, tensor, and its values then


class Watch:
    """Tells what one segment's forward changed.

    Every time: inputs and tensors by identity and version, other attributes by value. The first time also the
    bits of the tensors, because a write through `.data` leaves the version alone.
    """

    def __init__(self, module: nn.Module) -> None:
        self._tensors = _owned_tensors(module)
        self._modules = [(name, part, _hook_names(part)) for name, part in module.named_modules()]
        self._modules = [
            found for found in self._modules if not type(found[1]).__module__.startswith("torch.")
        ]
        self._has_compared = False

    def look(self, inputs: Sequence[Tensor]) -> Look:
        """Return the state before a forward."""
        copies = [] if self._has_compared else [(name, t, t.detach().clone()) for name, t in self._held()]
        self._has_compared = True
        return Look(self._seen(inputs), copies)

    def changes(self, before: Look, inputs: Sequence[Tensor]) -> list[str]:
        """Return the local names of what is not as it was."""
        after = self._seen(inputs)
        names = before.seen.keys() | after.keys()
        changed = {name for name in names if before.seen.get(name) != after.get(name)}
        return sorted(changed | {name for name, t, copy in before.copies if not is_same_tensor(t, copy)})

    def _held(self) -> Iterator[tuple[str, Tensor]]:
        for name, owner, key in self._tensors:
            if (tensor := owner[key]) is not None:
                yield name, tensor

    def _seen(self, inputs: Sequence[Tensor]) -> dict[str, Parts]:
        seen = {f"input {i}": tuple(_parts(t, 0, set())) for i, t in enumerate(inputs)}
        seen |= {name: tuple(_parts(t, 0, set())) for name, t in self._held()}
        visited: set[int] = set()
        for prefix, module, hook_names in self._modules:
            for key, value in vars(module).items():
                if key not in _OF_TORCH and key not in hook_names:
                    seen[f"{prefix}.{key}" if prefix else key] = tuple(_parts(value, _MAX_DEPTH, visited))
        return seen


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


def _hook_names(module: nn.Module) -> set[Any]:
    """Return the attributes that torch's own pre-forward hooks compute, as weight_norm and pruning do."""
    hooks = module._forward_pre_hooks.values()
    return {getattr(hook, key, None) for hook in hooks for key in ("name", "_tensor_name")}


def _owned_tensors(module: nn.Module) -> list[tuple[str, dict[str, Tensor | None], str]]:
    """Return (local name, the dict that holds it, its key there) of every parameter and buffer."""
    return [
        (f"{name}.{key}" if name else key, owner, key)
        for name, part in module.named_modules()
        for owner in (cast(dict[str, Tensor | None], part._parameters), part._buffers)
        for key in owner
    ]
