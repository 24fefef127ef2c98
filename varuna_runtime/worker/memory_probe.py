"""Counts bytes: what an op takes from torch's allocator, and what a forward keeps for its backward."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch.profiler import record_function

_MARK = "varuna memory probe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The bytes an op took."""

    peak_bytes: int  # most alive at one time beyond what was before
    left_bytes: int  # still alive behind it, its result among them; negative where it freed more


def taken(device: torch.device, *ops: Callable[[], object]) -> tuple[Taken, ...]:
    """Run `ops` one after the other and count the allocations of each on `device`, inside kernels too.

    On a CPU, what an op frees counts only if one of `ops` has allocated it.
    """
    if device.type == "cuda":
        return tuple(_taken_cuda(op, device) for op in ops)
    return tuple(_taken(changes) for changes in _changes_cpu(ops))


def _taken_cuda(op: Callable[[], object], device: torch.device) -> Taken:
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    op()
    torch.cuda.synchronize(device)
    return Taken(
        peak_bytes=torch.cuda.max_memory_allocated(device) - before,
        left_bytes=torch.cuda.memory_allocated(device) - before,
    )


def _changes_cpu(ops: Sequence[Callable[[], object]]) -> list[list[int]]:
    """Return the bytes of every allocation, negative ones of frees, in order, by op."""
    # The newer profiler counts the same, but takes seconds to start and writes to standard error.
    _enable_profiler_legacy(
        ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
    )
    try:
        for op in ops:
            with record_function(_MARK):
                op()
    finally:
        threads = _disable_profiler_legacy()
    found: list[list[int]] = []
    for event in (event for events in threads for event in events):
        if event.name() == _MARK:
            found.append([])
        elif change := event.cpu_memory_usage():
            found[-1].append(change)
    return found


def _taken(changes: Sequence[int]) -> Taken:
    alive = tuple(accumulate(changes, initial=0))
    return Taken(peak_bytes=max(alive), left_bytes=alive[-1])


class SavedBytes:
    """Counts storages that one forward keeps until its backward, without parameters, buffers and inputs."""

    def __init__(self, module: nn.Module, inputs: Sequence[Tensor]) -> None:
        self._known = {_storage(t) for t in (*module.parameters(), *module.buffers(), *inputs)}
        self._kept: dict[int, Tensor] = {}

    def pack(self, tensor: Tensor) -> Tensor:
        """Count a tensor that autograd saves."""
        self._keep(tensor)
        return tensor

    def num_bytes(self, outputs: Sequence[Tensor]) -> int:
        """Return the bytes kept, the segment's own output among them."""
        for output in outputs:
            self._keep(output)
        return sum(tensor.untyped_storage().nbytes() for tensor in self._kept.values())

    def _keep(self, tensor: Tensor) -> None:
        if (storage := _storage(tensor)) not in self._known:
            self._kept[storage] = tensor.detach()  # alive, so that its address stays its own


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the elements of `tensors`."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
