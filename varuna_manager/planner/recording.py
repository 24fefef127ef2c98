"""What a simulated step looks like, op by op and message by message: what pictures are drawn from."""

from dataclasses import dataclass

from varuna_manager.planner import event_loop
from varuna_manager.planner.event_loop import Channel
from varuna_manager.planner.groups import whole
from varuna_manager.planner.timing import Pipeline
from varuna_runtime.spec.schedule import Op


@dataclass(frozen=True, slots=True)
class TimedOp:
    """An op of a simulated step and when it runs, in seconds from the start of the step."""

    op: Op
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class TimedMessage:
    """A message of a simulated step and when it occupies its link or interface."""

    micro: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord:
    """One stage of one replica."""

    stage: int
    replica: int
    ops: tuple[TimedOp, ...]
    activations: tuple[TimedMessage, ...]  # to the next stage
    gradients: tuple[TimedMessage, ...]  # to the stage before


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """All stages of all replicas, by rank, and what follows their last ops."""

    ranks: tuple[StageRecord, ...]
    reductions_s: tuple[float, ...]  # by stage
    step_s: float

    @property
    def num_stages(self) -> int:
        """Number of stages of a replica."""
        return len(self.reductions_s)


def record(candidate: Pipeline, step_s: float, seed: int | None = None) -> StepRecord:
    """Return one step of all replicas; `step_s` is what `simulate` gives."""
    num_stages = len(candidate.stages)
    ran = event_loop.run(candidate, whole(candidate, seed))
    return StepRecord(
        ranks=tuple(
            StageRecord(
                stage=rank.rank % num_stages,
                replica=rank.rank // num_stages,
                ops=tuple(TimedOp(*op) for op in rank.ran),
                activations=_messages(rank.down),
                gradients=_messages(rank.up),
            )
            for rank in ran
        ),
        reductions_s=tuple(stage.reduction_s for stage in candidate.stages),
        step_s=step_s,
    )


def _messages(channel: Channel | None) -> tuple[TimedMessage, ...]:
    return tuple(TimedMessage(*sent) for sent in channel.sent) if channel else ()
