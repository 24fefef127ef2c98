"""Who carries out a training: the seam between `varuna.train` and lone run, launcher and inspection."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from varuna_runtime.spec.reports import EvaluationReport

if TYPE_CHECKING:
    from varuna_runtime.worker.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a finished lone training leaves behind."""

    step: int  # committed steps
    losses: tuple[float, ...]  # one a step run by this call, oldest first
    evaluations: tuple[EvaluationReport, ...]  # oldest first; the last one is of the finished model
    weights_sha256: str
    state: Mapping[str, Tensor]  # parameters and persistent buffers by whole-model name, on the CPU


class Host(Protocol):
    """Carries out one training; only a host that trains to the end in this process returns."""

    def run(self, training: "Training") -> Result:
        """Take over from the script."""
        ...


class ScriptStopped(BaseException):
    """Raised by a host that has what it wants from the script; passes through `except Exception`."""


_host: ContextVar[Host | None] = ContextVar("varuna_host", default=None)


@contextmanager
def hosted_by(host: Host) -> Iterator[None]:
    """Make `host` the one that `varuna.train` calls."""
    token = _host.set(host)
    try:
        yield
    finally:
        _host.reset(token)


def current_host() -> Host:
    """Return the host set by `hosted_by`, else a fresh lone host."""
    host = _host.get()
    if host is not None:
        return host
    from varuna_runtime.worker.lone import LoneHost

    return LoneHost()
