"""One candidate as times: what the simulator runs and the bounds are proven for. Records only."""

from dataclasses import dataclass

from varuna_runtime.spec.layout import ScheduleKind

OWN_LINK = -1  # in the place of an interface: messages share it with no others


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTiming:
    """Seconds of one stage: per micro-batch, then once a step."""

    forward_s: float
    backward_s: float
    recompute: bool
    reduction_s: float
    optimizer_s: float
    in_flight: int = 0  # see `Stage`
    recompute_s: float | None = None  # None: as the forward
    input_s: float | None = None  # I of a split backward; None: half of it

    @property
    def replay_s(self) -> float:
        """One recompute, where there is one."""
        return self.forward_s if self.recompute_s is None else self.recompute_s

    @property
    def micro_s(self) -> float:
        """Work per micro-batch, recompute included."""
        return self.forward_s + (self.replay_s if self.recompute else 0.0) + self.backward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """One direction of the link between two stages: a message occupies it, then travels."""

    serial_s: float
    latency_s: float
    late_s: tuple[float, ...] = ()  # see `LinkCost`

    @property
    def delay_s(self) -> float:
        """From the end of an op to the arrival of its message on a free link."""
        return self.serial_s + self.latency_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """`boundaries[s]` joins stages s and s + 1, both ways; `micro_batches[d]` is the share of replica d."""

    schedule: ScheduleKind
    stages: tuple[StageTiming, ...]
    boundaries: tuple[Boundary, ...]
    micro_batches: tuple[int, ...]
    agreement_s: float  # tied sums, totals and vote, after the last reduction and before the optimizer
    last_compute: float = 1.0  # time of the ops of the step's last micro-batch over that of the others
    last_bytes: float = 1.0  # the same of its messages: it may have fewer samples
    compute_factor: tuple[float, ...] = ()  # see `Profile`
    interfaces: tuple[tuple[int, int], ...] = ()
    """By rank, what its activations and its gradients leave its node by; empty where nothing is shared."""

    @property
    def is_ragged(self) -> bool:
        """True where the last micro-batch of the step takes another time than the others."""
        return self.last_compute != 1.0 or self.last_bytes != 1.0

    @property
    def whole_micro(self) -> int:
        """Most whole micro-batches of a replica; the last replica has the last micro-batch."""
        *others, last = self.micro_batches
        return max(*others, last - self.is_ragged) if others else last - self.is_ragged

    @property
    def has_jitter(self) -> bool:
        """True where luck makes a difference."""
        return bool(self.compute_factor) or any(boundary.late_s for boundary in self.boundaries)
