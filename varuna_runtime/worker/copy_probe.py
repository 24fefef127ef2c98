"""How fast the host's memory reaches the device."""

import torch

from varuna_runtime.worker.samples import typical
from varuna_runtime.worker.stopwatch import Stopwatch

_BYTES = 2**26
_ROUNDS = 5


def host_to_device_bps(device: torch.device) -> float | None:
    """Return the bits per second of copies out of pinned memory to a GPU; None where there is none."""
    if device.type != "cuda":
        return None
    source = torch.empty(_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(_BYTES, dtype=torch.uint8, device=device)
    target.copy_(source)  # the first one pays for what all others have
    return 8 * _BYTES / typical([_copy_s(source, target) for _ in range(_ROUNDS)])


def _copy_s(source: torch.Tensor, target: torch.Tensor) -> float:
    watch = Stopwatch(target.device)
    with watch:
        target.copy_(source, non_blocking=True)
    return watch.taken_s()
