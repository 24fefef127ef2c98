"""What the supervisor hears."""

from dataclasses import dataclass

from varuna_runtime.agent.records import (
    Endpoint,
    Failed,
    LauncherOrder,
    RankKey,
    RankReport,
    StartOrder,
    StepDone,
)
from varuna_runtime.spec.copies import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReceived:
    """Command: run these ranks."""

    order: StartOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivateReceived:
    """Command: form the group."""

    job: str
    generation: int
    endpoints: tuple[Endpoint, ...]
    resume: Version | None = None  # what every rank starts from; None: what it loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReceived:
    """Command: stop at an agreed step."""

    job: str
    generation: int
    within_s: float
    persist: bool = True  # at a durable one; else copies in memory are enough


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortReceived:
    """Command: end every process of that generation now."""

    job: str
    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmReceived:
    """Command: have the job's launcher ready; no rank is to run yet."""

    order: LauncherOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetReceived:
    """Command: the job is over."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndAllReceived:
    """Fenced, leaving, told to stop, or too long without a manager: end every process."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherReady:
    """The launcher holds at the script's `train`."""

    launcher: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherFailed:
    """Bundle, setup command or script failed; LauncherGone follows."""

    launcher: int
    failure: Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherGone:
    """The launcher and every process it ever started have ended."""

    launcher: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankForked:
    """The rank's process exists."""

    key: RankKey
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReported:
    """The worker said so itself."""

    key: RankKey
    report: RankReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStepped:
    """The worker committed a step."""

    key: RankKey
    step: StepDone


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBeat:
    """The worker is alive; `in_step_s` is how long its current step has been running."""

    key: RankKey
    in_step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBusy:
    """The rank's process computes, whether or not it speaks."""

    key: RankKey


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFrozen:
    """The rank's process has been stopped for too long."""

    key: RankKey
    stopped_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFailed:
    """A call to the worker failed; the worker usually ends by itself and says why."""

    key: RankKey
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExited:
    """The rank's process is reaped and everything it said was heard."""

    key: RankKey
    exit_code: int | None
    signal: int | None
    log_tail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoodStill:
    """This agent itself did not run for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Time passed."""


Event = (
    StartReceived
    | ActivateReceived
    | DrainReceived
    | AbortReceived
    | WarmReceived
    | ForgetReceived
    | EndAllReceived
    | LauncherReady
    | LauncherFailed
    | LauncherGone
    | RankForked
    | RankReported
    | RankStepped
    | RankBeat
    | RankBusy
    | RankFrozen
    | CallFailed
    | RankExited
    | StoodStill
    | Ticked
)
