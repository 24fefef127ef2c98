"""Running statistics of normalisation layers, folded over a step's micro-batches at commit (contract E7).

In forward a layer writes into a scratch copy with momentum 1: that leaves the batch statistics there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from varuna_runtime.spec.errors import ModelRefused
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.signals import Stepping, receive


@dataclass(slots=True)
class RunningStatistics:
    """One layer's statistics of this replica's micro-batches of the current step, in order."""

    layer: _NormBase
    recording: bool = False
    mean: list[Tensor] = field(default_factory=list)
    var: list[Tensor] = field(default_factory=list)
    _kept: tuple[dict[str, Tensor | None], float | None] | None = None

    def install(self) -> None:
        """Hook the layer, so that a training forward leaves its buffers alone."""
        self.layer.register_forward_pre_hook(lambda *_: self._swap_in())
        self.layer.register_forward_hook(lambda *_: self._swap_out())

    def _swap_in(self) -> None:
        if not self.layer.training:
            return
        buffers = self.layer._buffers
        self._kept = dict(buffers), self.layer.momentum
        buffers.update({key: torch.zeros_like(t) for key, t in buffers.items() if t is not None})
        self.layer.momentum = 1.0

    def _swap_out(self) -> None:
        if self._kept is None:
            return
        buffers = self.layer._buffers
        mean, var = buffers["running_mean"], buffers["running_var"]
        assert mean is not None
        assert var is not None
        if self.recording:
            self.mean.append(mean)
            self.var.append(var)
        kept, self.layer.momentum = self._kept
        buffers.update(kept)
        self._kept = None

    def take(self) -> tuple[Tensor, Tensor]:
        """Return the recorded means and variances as `(records, features)` and forget them."""
        shape = self.layer._buffers["running_mean"]
        assert shape is not None
        empty = shape.new_empty((0, *shape.shape))
        stacked = (
            torch.stack(self.mean) if self.mean else empty,
            torch.stack(self.var) if self.var else empty,
        )
        self.mean.clear()
        self.var.clear()
        return stacked

    def fold(self, mean: Tensor, var: Tensor) -> None:
        """Update the running statistics by all records of the step, in order of micro-batch."""
        buffers = self.layer._buffers
        running_mean, running_var = buffers["running_mean"], buffers["running_var"]
        tracked = buffers.get("num_batches_tracked")
        assert running_mean is not None
        assert running_var is not None
        for batch_mean, batch_var in zip(mean, var, strict=True):
            factor = self.layer.momentum
            if tracked is not None and isinstance(self.layer, _BatchNorm):
                tracked.add_(1)
                factor = 1.0 / float(tracked) if factor is None else factor
            assert factor is not None
            running_mean.mul_(1.0 - factor).add_(batch_mean * factor)
            running_var.mul_(1.0 - factor).add_(batch_var * factor)


class StatisticsFold:
    """All such layers of one stage, in segment order."""

    def __init__(self, segments: Sequence[nn.Module]) -> None:
        layers = [
            m for segment in segments for name, m in segment.named_modules() if _keeps_statistics(m, name)
        ]
        self._all = [RunningStatistics(layer) for layer in layers if isinstance(layer, _NormBase)]
        self._pending: list[tuple[Tensor, Tensor]] = []
        for statistics in self._all:
            statistics.install()

    def begin(self) -> None:
        """Forget what an abandoned step recorded."""
        self._pending = []
        for statistics in self._all:
            statistics.mean.clear()
            statistics.var.clear()

    def record(self, active: bool) -> None:
        """Turn recording on for a forward, off for its recompute."""
        for statistics in self._all:
            statistics.recording = active

    def exchange(self, link: Link, peers: Sequence[int], replica: int) -> Stepping[None]:
        """Collect the step's records of all replicas of the stage."""
        if not self._all:
            return
        own = tuple(t for statistics in self._all for t in statistics.take())
        messages = []
        for d, rank in enumerate(peers):
            if d != replica:
                link.send(rank, "running statistics", own)
        for d, rank in enumerate(peers):
            messages.append(own if d == replica else (yield from receive(link, rank, "running statistics")))
        joined = [torch.cat(records) for records in zip(*messages, strict=True)]
        self._pending = list(zip(joined[::2], joined[1::2], strict=True))

    def commit(self) -> None:
        """Fold what was collected."""
        with torch.no_grad():
            for statistics, records in zip(self._all, self._pending, strict=bool(self._pending)):
                statistics.fold(*records)
        self._pending = []


def _keeps_statistics(module: nn.Module, name: str) -> bool:
    if isinstance(module, nn.SyncBatchNorm):
        raise ModelRefused(
            f"{name} is a SyncBatchNorm, which mixes the statistics of ranks; use BatchNorm: "
            "it normalises with its own micro-batch, and the running statistics are folded over all of them"
        )
    if not isinstance(module, _NormBase) or module._buffers.get("running_mean") is None:
        return False
    # An instance norm without momentum never updates.
    return isinstance(module, _BatchNorm) or module.momentum is not None
