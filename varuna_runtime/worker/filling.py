"""Puts the parameters and buffers of a checkpoint into the segments of a stage, piece by piece."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec.errors import CheckpointRefused
from varuna_runtime.worker.segment import SegmentRunner


class Filling:
    """One load of one stage."""

    def __init__(self, model: PartitionedModel, segments: Sequence[SegmentRunner]) -> None:
        """Every tensor of `segments` is to be filled; a tied one from its first use."""
        first_uses = {use: tie.uses[0].name for tie in model.tied for use in tie.uses}
        self._targets: dict[str, list[Tensor]] = {}
        for segment in segments:
            tied = {use.name: name for use, name in first_uses.items() if use.segment == segment.index}
            own = dict(segment.module.named_parameters(remove_duplicate=False))
            own |= dict(segment.module.named_buffers())  # type: ignore[arg-type]
            for local, name in segment.names.items():
                kind = "param" if isinstance(own[local], nn.Parameter) else "buffer"
                self._targets.setdefault(f"{kind}:{tied.get(name, name)}", []).append(own[local])
        self._missing = set(self._targets)

    def take(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy what is wanted of `tensors` into place."""
        with torch.no_grad():
            for key in tensors.keys() & self._targets.keys():
                for target in self._targets[key]:
                    if tensors[key].shape != target.shape:
                        raise _refusal(key, target)
                    target.copy_(tensors[key])
                self._missing.discard(key)

    def finish(self) -> None:
        """Raise CheckpointRefused if a tensor did not come."""
        for key in sorted(self._missing):
            raise _refusal(key, self._targets[key][0])


def _refusal(key: str, target: Tensor) -> CheckpointRefused:
    return CheckpointRefused(f"the checkpoint has no {key} of shape {list(target.shape)}")
