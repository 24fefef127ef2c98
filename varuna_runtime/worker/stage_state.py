"""What a checkpoint holds of one stage: taken out of segments and optimizer, and put back piece by piece."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec.errors import CheckpointRefused
from varuna_runtime.spec.manifest import TrainerState
from varuna_runtime.worker.build import BuiltStage, tensors_of
from varuna_runtime.worker.segment import SegmentRunner


class StageState:
    """The tensors of one built stage, in names that no layout shows in."""

    def __init__(self, model: PartitionedModel, built: BuiltStage) -> None:
        self._model = model
        self._built = built

    @property
    def needed_segments(self) -> tuple[int, ...]:
        """Segments whose tensors `load` needs: the stage's own and the first uses of its tied parameters."""
        return needed_by(self._model, {segment.index for segment in self._built.segments})

    def weights(self) -> list[dict[str, Tensor]]:
        """Return the live parameters and buffers of each segment."""
        return [tensors_of(self._model, segment) for segment in self._built.segments]

    def tensors(self) -> dict[int, dict[str, Tensor]]:
        """Return the live tensors by segment, those of the optimizer included."""
        found = {}
        for segment, weights in zip(self._built.segments, self.weights(), strict=True):
            records = self._model.record_segments[segment.index].tensors
            names = {record.name for record in records if not record.is_buffer}
            found[segment.index] = weights | self._built.optimizer.tensors(names)
        return found

    def load(self, pieces: Iterable[Mapping[str, Tensor]], trainer: TrainerState) -> None:
        """Take the tensors of the needed segments in any grouping, one group in memory at a time."""
        restoring = self._built.optimizer.restoring(
            groups=trainer.optimizer_groups, scheduler=trainer.scheduler
        )
        filling = _Filling(self._model, self._built.segments)
        for tensors in pieces:
            filling.take(tensors)
            restoring.take(tensors)
        filling.finish()
        restoring.finish()


def needed_by(model: PartitionedModel, own: Collection[int]) -> tuple[int, ...]:
    """Return the segments whose tensors a stage of the segments `own` needs."""
    tied = [tie for tie in model.tied if any(use.segment in own for use in tie.uses)]
    first = {tie.uses[0].segment for tie in tied}  # frozen ones too, which nothing else keeps equal
    return tuple(sorted({*own, *first}))


class _Filling:
    """One load of parameters and buffers."""

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
