"""The state of an optimizer out of a checkpoint or copy, compared with what this optimizer keeps."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from varuna_runtime.spec.errors import CheckpointRefused
from varuna_runtime.spec.pieces import PieceName
from varuna_runtime.worker.shares import Holding

State = Mapping[str, object]


class Restoring:
    """Takes the state of an optimizer out of pieces, whoever held which."""

    def __init__(
        self, optimizer: Optimizer, holdings: Sequence[Holding], on_finish: Callable[[], None]
    ) -> None:
        """The optimizer's groups are restored already: what it keeps depends on them."""
        self._by_name = {held.name: held for held in holdings}
        self._state: dict[Any, Any] = optimizer.state
        self._kept = _Kept(optimizer)
        self._on_finish = on_finish
        self._restored: set[str] = set()
        self._num_filled: Counter[tuple[str, str]] = Counter()

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy what is ours out of `tensors`; CheckpointRefused: it is not what this optimizer keeps."""
        for full_name, value in tensors.items():
            piece = PieceName.of(full_name)
            kind, _, rest = piece.whole.partition(":")
            name, _, key = rest.rpartition(":")
            if kind == "optim" and name in self._by_name:
                self._restore(self._by_name[name], key, value.detach(), piece.start)
                self._restored.add(name)

    def finish(self) -> None:
        """Raise CheckpointRefused if some state came in part only."""
        for (name, key), num_filled in self._num_filled.items():
            if num_filled != len(self._by_name[name].elements):
                raise CheckpointRefused(f"the checkpoint holds only a part of {key} of {name}")
        for name in sorted(self._restored):
            held = self._by_name[name]
            state = self._state.get(held.stepped, {})
            for key in self._kept.of(held):
                if key not in state:
                    raise CheckpointRefused(f"the checkpoint lacks the optimizer's {key} of {name}")
        self._on_finish()

    def _restore(self, held: Holding, key: str, value: Tensor, start: int | None) -> None:
        key, _, number = key.partition("#")
        wanted = self._kept.of(held).get(key)
        is_whole = start is None and not (held.is_slice and value.shape == held.shape)
        seen: object = value.item() if number and value.numel() == 1 else value
        if reason := _mismatch(seen, wanted, held.stepped.shape if is_whole else None):
            raise CheckpointRefused(f"the checkpoint's optimizer state {key} of {held.name} {reason}")
        state = self._state[held.stepped]
        if number:
            state[key] = seen
            return
        # As in Optimizer.load_state_dict: step counters stay on the CPU.
        device = torch.device("cpu") if key == "step" else held.stepped.device
        if is_whole:
            state[key] = value.to(device, copy=True)
            return
        self._fill(held, key, value, start or 0, device)

    def _fill(self, held: Holding, key: str, value: Tensor, at: int, device: torch.device) -> None:
        state = self._state[held.stepped]
        theirs = range(at, at + value.numel())
        first, stop = max(held.start, theirs.start), min(held.elements.stop, theirs.stop)
        if first < stop:
            if key not in state:
                state[key] = torch.empty(held.stepped.shape, dtype=value.dtype, device=device)
            ours = state[key].view(-1)[first - held.start : stop - held.start]
            ours.copy_(value.reshape(-1)[first - theirs.start : stop - theirs.start])
            self._num_filled[held.name, key] += stop - first


class _Kept:
    """What an optimizer of torch keeps of a parameter; of any other kind nothing is known."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._is_known = f"{type(optimizer).__module__}.".startswith("torch.optim.")
        self._groups = {id(p): i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
        self._found: dict[tuple[int, int, torch.dtype], State] = {}

    def of(self, held: Holding) -> State:
        """Return the state after a first step, tensors on the meta device; empty when it is not known."""
        number = self._groups.get(id(held.stepped))
        if not self._is_known or number is None:
            return {}
        like = (number, held.stepped.dim(), held.stepped.dtype)
        if like not in self._found:
            group = self._optimizer.param_groups[number]
            self._found[like] = _first_state(type(self._optimizer), group, held.stepped)
        return {key: _resized(value, held.stepped.shape) for key, value in self._found[like].items()}


_SMALL = 2  # so many elements in each dimension tell what is kept


def _first_state(kind: Callable[..., Optimizer], group: Mapping[str, Any], like: nn.Parameter) -> State:
    """Return what is kept of a small parameter."""
    stand_in = nn.Parameter(like.new_zeros([_SMALL] * like.dim()))
    stand_in.grad = torch.zeros_like(stand_in)
    made = kind([{**group, "params": [stand_in], "param_names": ["it"]}])
    made.step()
    return {key: value for key, value in made.state.get(stand_in, {}).items() if value is not None}


def _resized(value: object, shape: torch.Size) -> object:
    """Return what is kept of a parameter of this shape where `value` is kept of a small one."""
    if not isinstance(value, Tensor) or value.dim() != len(shape):
        return value
    sizes = [real if small == _SMALL else small for small, real in zip(value.shape, shape, strict=True)]
    return value.new_empty(sizes, device="meta")


def _mismatch(seen: object, wanted: object, shape: torch.Size | None) -> str:
    """Return how a value differs from what is kept; empty: it does not, or nothing is known.

    `shape` is that of the parameter; None for a slice of a value that is shaped like it.
    """
    if wanted is None:
        return ""
    if not isinstance(seen, Tensor) or not isinstance(wanted, Tensor):
        is_alike = isinstance(seen, Tensor) == isinstance(wanted, Tensor)
        return "" if is_alike else f"is a {type(seen).__name__}, wanted a {type(wanted).__name__}"
    if seen.dtype != wanted.dtype:
        return f"has dtype {_word(seen.dtype)}, wanted {_word(wanted.dtype)}"
    if shape is not None and seen.shape != wanted.shape:
        return f"has shape {tuple(seen.shape)}, wanted {tuple(wanted.shape)}"
    if shape is None and not wanted.shape and seen.numel() != 1:
        return "comes in slices, wanted one number"
    return ""


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
