"""Messages between an agent and a launcher: one JSON object a line over a socket pair."""

import json
from dataclasses import dataclass

from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScript:
    """First message to a launcher: run the script and hold at its call of `train`."""

    entrypoint: str  # relative to `workdir`
    args: tuple[str, ...]
    workdir: str
    job_json: str  # JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRank:
    """Fork the worker of one rank; answered by Forked."""

    job: str
    generation: int
    rank: int
    socket: str  # Unix socket path the worker serves on
    log: str  # file its output is appended to
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRank:
    """SIGKILL a worker's process group; answered by Exited once it is reaped."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptHeld:
    """The script reached `train`; forks may be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptFailed:
    """The script did not reach `train`; the launcher exits."""

    message: str
    detail: str  # bounded traceback
    is_hang: bool = False  # its data set was not to be read in time


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """A worker process exists."""

    generation: int
    rank: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exited:
    """A worker is reaped; exactly one of exit_code and signal is set."""

    pid: int
    exit_code: int | None
    signal: int | None


Message = RunScript | ForkRank | KillRank | ScriptHeld | ScriptFailed | Forked | Exited
_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (RunScript, ForkRank, KillRank, ScriptHeld, ScriptFailed, Forked, Exited)
}


def encode(message: Message) -> bytes:
    """Return one line, newline included."""
    body = {"kind": type(message).__name__, "body": json.loads(canonical.dumps(message))}
    return json.dumps(body).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Return the message of one line; raises InvalidInput on anything else."""
    try:
        parsed = json.loads(line)
        kind, body = _KINDS[parsed["kind"]], json.dumps(parsed["body"])
    except (ValueError, KeyError, TypeError) as err:
        raise InvalidInput(f"not a launcher message: {line[:200]!r}") from err
    return canonical.loads(kind, body)
