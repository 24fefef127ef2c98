"""What the supervisor wants done; every action may be repeated without harm."""

from dataclasses import dataclass

from varuna_runtime.agent.records import Endpoint, LauncherOrder, RankKey, RankReport, StartOrder, StepDone
from varuna_runtime.spec.copies import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLauncher:
    """Fetch the bundle, run the setup command, start a launcher; `generation` is 0 without ranks."""

    launcher: int
    generation: int  # whose log its output goes to
    order: LauncherOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseLauncher:
    """End the launcher and everything below it; answered by LauncherGone."""

    launcher: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Fork a rank; answered by RankForked."""

    launcher: int
    key: RankKey
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """SIGKILL a rank's process group; answered by RankExited."""

    launcher: int
    key: RankKey
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPrepare:
    """Open the rank's progress stream, then call Prepare."""

    key: RankKey
    order: StartOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class CallActivate:
    """Call Activate."""

    key: RankKey
    endpoints: tuple[Endpoint, ...]
    resume: Version | None = None  # what every rank starts from; None: what it loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAbort:
    """Call Abort: the process ends as soon as a copy that it is making is complete."""

    key: RankKey


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDrain:
    """Call Drain."""

    key: RankKey
    within_s: float
    persist: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Tell the manager about a rank."""

    key: RankKey
    report: RankReport


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportStep:
    """Tell the manager about a committed step."""

    key: RankKey
    step: StepDone


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportGone:
    """Tell the manager that no process of that generation is left here."""

    job: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportWarm:
    """Tell the manager that the job's launcher is ready here, or why not (`reason` is then not empty)."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DropJob:
    """Remove the job's files on this node."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """A command was not obeyed; goes to the log."""

    job: str
    generation: int
    reason: str


Action = (
    OpenLauncher
    | CloseLauncher
    | Fork
    | Kill
    | CallPrepare
    | CallActivate
    | CallAbort
    | CallDrain
    | Report
    | ReportStep
    | ReportGone
    | ReportWarm
    | DropJob
    | Refuse
)
