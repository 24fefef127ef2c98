"""The first fault of a generation, as it travels between links and as it ends a rank."""

import torch
from torch import Tensor

from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import PeerFailed, PeerLost
from varuna_runtime.spec.generation import Cause, Fault

MAX_FAULT_BYTES = 1 << 16


def lost(rank: int, reason: BaseException | str) -> Fault:
    """Return the fault of a rank that went away without a word."""
    text = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
    return Fault(rank=rank, cause=Cause.PEER_LOST, message=(text.splitlines() or [""])[0])


def error_of(fault: Fault) -> PeerLost | PeerFailed:
    """Return what to raise on every other rank."""
    if fault.cause is Cause.PEER_LOST:
        return PeerLost(fault.rank, fault.message)
    return PeerFailed(fault)


def to_tensor(fault: Fault) -> Tensor:
    """Return the fault as the one tensor of an ABORT."""
    text = canonical.dumps(fault)
    assert len(text) <= MAX_FAULT_BYTES, "a fault's texts are bounded by who makes it"
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def from_tensor(tensor: Tensor) -> Fault:
    """Return what `to_tensor` was given; raises InvalidInput on anything else."""
    return canonical.loads(Fault, tensor.numpy().tobytes())
