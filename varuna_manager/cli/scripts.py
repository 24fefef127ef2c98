"""Running a job's script on this machine, in a process of its own, to learn about its model."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import click

from varuna_manager import config
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.manifest import ImportOrder
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import Profile

WITHIN_S = 150.0
"""As long as an agent gives a launcher; a script that takes longer here could not start there."""
IMPORT_WITHIN_S = 24 * 3600.0
_LEAVE_S = 2.0


class ScriptRefused(InvalidInput):
    """The script could not be inspected; `detail` is its traceback, if it raised."""

    def __init__(self, message: str, detail: str) -> None:
        super().__init__(message)
        self.detail = detail


def tell_detail(refused: ScriptRefused) -> None:
    """Print the script's traceback, if there is one."""
    if refused.detail:
        click.echo(refused.detail.rstrip(), err=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run of the script on this machine showed."""

    model: ModelRecord
    profile: Profile | None
    warnings: tuple[str, ...]  # what the user should know of how the model was cut


def measure(spec: JobSpec, workdir: Path, *, with_profile: bool) -> Measured:
    """Return the structure of the script's model and, if asked, what its segments cost on this machine.

    Nothing is trained; without a profile no weights are made. ScriptRefused: it did not get that far.
    """
    module = "varuna_runtime.worker.profiling" if with_profile else "varuna_runtime.worker.inspection"
    answer = _run(module, spec, workdir)
    return Measured(
        model=canonical.loads(ModelRecord, json.dumps(answer["model"])),
        profile=canonical.loads(Profile, json.dumps(answer["profile"])) if with_profile else None,
        warnings=tuple(answer.get("warnings", ())),
    )


def imported(spec: JobSpec, workdir: Path, order: ImportOrder) -> Measured:
    """Make the checkpoint that a job starts from, and return the structure of its model; ScriptRefused."""
    answer = _run("varuna_runtime.worker.importing", spec, workdir, order=order)
    model = canonical.loads(ModelRecord, json.dumps(answer["model"]))
    return Measured(model=model, profile=None, warnings=tuple(answer["warnings"]))


def _run(module: str, spec: JobSpec, workdir: Path, *, order: object = None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="varuna-submit-") as scratch:
        job_file, order_file = Path(scratch, "job.json"), Path(scratch, "order.json")
        job_file.write_bytes(canonical.dumps(spec))
        if order is None:
            return _answer([module], job_file, spec, workdir, within_s=WITHIN_S)
        order_file.write_bytes(canonical.dumps(order))
        return _answer([module, str(order_file)], job_file, spec, workdir, within_s=IMPORT_WITHIN_S)


def _answer(
    module: list[str], job_file: Path, spec: JobSpec, workdir: Path, *, within_s: float
) -> dict[str, Any]:
    """Run the module; the answer has a pipe of its own, since the script may print anything."""
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", *module, "--job", str(job_file), "--workdir", str(workdir)]
    command += ["--fd", str(write_end), spec.entrypoint, *spec.args]
    with os.fdopen(read_end, "rb") as answers:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                pass_fds=(write_end,),
                env=_environment(spec),
            )
        finally:
            os.close(write_end)
        return parsed(*heard(process, answers, within_s), spec)


def heard(process: subprocess.Popen[bytes], answers: BinaryIO, within_s: float) -> tuple[bytes, int | None]:
    """Return the answer and the exit code, None if it took too long; the process has ended by then."""
    limit = threading.Timer(within_s, process.kill)
    limit.start()
    try:
        text = answers.read()
        process.wait(_LEAVE_S)
    except subprocess.TimeoutExpired:
        pass  # it has answered; what keeps it does not matter
    finally:
        is_late = not limit.is_alive()
        limit.cancel()
        process.kill()
        code = process.wait()
    return text, None if is_late and not text else code


def _environment(spec: JobSpec) -> dict[str, str]:
    threads = str(spec.threads_per_worker)
    return {**config.environment(), "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **spec.env}


def parsed(text: bytes, code: int | None, spec: JobSpec) -> dict[str, Any]:
    """Return the answer in `text`; ScriptRefused if it is a refusal, or there is none."""
    line = text.strip().rpartition(b"\n")[2]
    if not line and code is None:
        raise ScriptRefused(
            f"{spec.entrypoint}: seen no call of varuna.train within {WITHIN_S:g} s, wanted one at once; "
            "leave long preparations to `setup` or to the data set",
            "",
        )
    if not line:
        assert code is not None
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise ScriptRefused(f"{spec.entrypoint} ended with {how} before its model was known", "")
    answer: dict[str, Any] = json.loads(line)
    if error := answer.get("error"):
        raise ScriptRefused(f"{error['where'] or spec.entrypoint}: {error['message']}", error["detail"])
    return answer
