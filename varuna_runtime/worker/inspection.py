"""Finds out what a script trains, without training: the model's segments and the length, as one JSON line.

A subprocess: `python -m varuna_runtime.worker.inspection --job JOB.json --workdir DIR --fd N ENTRY ARGS...`.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import CheckpointRefused, InvalidInput, ModelRefused, StoreError
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.worker.forkable import refuse_unforkable
from varuna_runtime.worker.hosts import Host, ScriptStopped
from varuna_runtime.worker.partitioning import partition_of
from varuna_runtime.worker.script import run_script, script_line, script_traceback
from varuna_runtime.worker.training import Training, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptError:
    """Why a script cannot be trained. Kinds: `user_error`, `refused`, `no_train`."""

    kind: str
    message: str  # one line
    where: str = ""  # `file:line` in the working directory, where known
    detail: str = ""  # traceback of the script's own error, from its first frame on


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The answer about a script that cannot be trained."""

    error: ScriptError


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """The answer about a script that can."""

    model: ModelRecord
    warnings: tuple[str, ...]  # what the user should know of how the model was cut


class AnsweringHost(Host, Protocol):
    """A host that has an answer, a record of JSON values, once the script called `varuna.train`."""

    answer: object | None


class InspectHost:
    """Takes the `varuna.train` call, records the model and stops the script."""

    def __init__(self, spec: JobSpec | None) -> None:
        self._spec = spec
        self.answer: object | None = None

    def run(self, training: Training) -> NoReturn:
        """Record the model; never returns."""
        refuse_unforkable()
        self.answer = inspected(training, self._spec)
        raise ScriptStopped


def inspected(training: Training, spec: JobSpec | None) -> Inspected:
    """Return what a training's model and data set look like, without making any weights."""
    resolved = resolve(training, spec)
    partitioned = partition_of(training)
    return Inspected(
        model=ModelRecord(
            segments=partitioned.record_segments,
            tied=partitioned.tied,
            aliases=partitioned.aliases,
            num_samples=resolved.num_samples,
            num_steps=resolved.num_steps,
        ),
        warnings=partitioned.warnings,
    )


def ask(entry: Path, args: Sequence[str], workdir: Path, host: AnsweringHost) -> object:
    """Run the script up to its `varuna.train` call; return the host's answer, or Failed."""
    failure = _failure(entry, args, workdir, host)
    if host.answer is not None:
        return host.answer
    message = (
        'ended without calling varuna.train; a training script does so under `if __name__ == "__main__":`'
    )
    return Failed(error=failure or ScriptError(kind="no_train", message=message))


def _failure(entry: Path, args: Sequence[str], workdir: Path, host: Host) -> ScriptError | None:
    try:
        run_script(entry, args, workdir, host)
    except (InvalidInput, ModelRefused, CheckpointRefused, StoreError) as err:
        message = " ".join(str(err).splitlines())
        return ScriptError(kind="refused", message=message, where=script_line(err, workdir))
    except SystemExit as err:
        if err.code is None or err.code == 0:
            return None
        return ScriptError(
            kind="user_error",
            message=f"exited with {err.code!r} before its call of varuna.train",
            where=script_line(err, workdir),
        )
    except Exception as err:  # the user's script may raise anything; it becomes the answer
        message = f"{type(err).__name__}: {err}".splitlines()[0]
        return ScriptError(
            kind="user_error", message=message, where=script_line(err, workdir), detail=script_traceback(err)
        )
    return None


def main(argv: Sequence[str], host_for: Callable[[JobSpec | None], AnsweringHost]) -> int:
    """Ask the script named by `argv` and write the answer as one JSON line; exit code 1: it failed."""
    parser = argparse.ArgumentParser(description="Report what a training script trains, as one JSON line.")
    parser.add_argument("--job", type=Path, help="file with the job as JSON; without it the script decides")
    parser.add_argument("--workdir", type=Path, default=Path())
    parser.add_argument("--fd", type=int, default=1, help="where the JSON line goes")
    parser.add_argument("entry", type=Path)
    parser.add_argument("args", nargs=argparse.REMAINDER)
    order = parser.parse_args(argv)
    spec = None if order.job is None else canonical.loads(JobSpec, order.job.read_bytes())
    answer = ask(order.entry, order.args, order.workdir.resolve(), host_for(spec))
    sys.stdout.flush()
    # Closed at once: who waits for the answer need not wait for threads that the script left running.
    with os.fdopen(order.fd, "wb") as reply:
        reply.write(canonical.dumps(answer) + b"\n")
    return 1 if isinstance(answer, Failed) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], InspectHost))
