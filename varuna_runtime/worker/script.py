"""Running a user's script as `__main__` under a host, as `python script.py` would."""

import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.worker.hosts import Host, ScriptStopped, hosted_by


def run_script(path: Path, args: Sequence[str], workdir: Path, host: Host) -> None:
    """Run `path` (relative to `workdir`) with `host` behind `varuna.train`, until it ends or is stopped.

    Sets the working directory, sys.argv and sys.path[0] and puts them back. What the script raises,
    SystemExit included, passes through, except the host's own ScriptStopped. InvalidInput: no such file.
    """
    script = (workdir / path).resolve()
    if not script.is_file():
        raise InvalidInput(f"entrypoint: no file {path} in {workdir}")
    with _surroundings(script, args, workdir), hosted_by(host), suppress(ScriptStopped):
        runpy.run_path(str(script), run_name="__main__")


def script_traceback(err: BaseException) -> str:
    """Return the traceback of an error from the script's own first frame on; empty if it has none there."""
    frame = err.__traceback__
    while frame is not None and _is_ours(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    return "" if frame is None else "".join(traceback.format_exception(type(err), err, frame))


def script_line(err: BaseException, workdir: Path) -> str:
    """Return `file:line` of the innermost place below `workdir` an error came through; empty for none."""
    places = [(frame.filename, frame.lineno or 1) for frame in traceback.extract_tb(err.__traceback__)]
    if isinstance(err, SyntaxError) and err.filename:
        places.append((err.filename, err.lineno or 1))
    own = [(Path(file), line) for file, line in places if Path(file).is_relative_to(workdir)]
    return f"{own[-1][0].relative_to(workdir)}:{own[-1][1]}" if own else ""


def _is_ours(filename: str) -> bool:
    ours = str(Path(__file__).parent)
    return filename == runpy.__file__ or filename.startswith(("<frozen", ours))


@contextmanager
def _surroundings(script: Path, args: Sequence[str], workdir: Path) -> Iterator[None]:
    argv, search_path, folder = sys.argv, sys.path[:], Path.cwd()
    sys.argv = [str(script), *args]
    sys.path[0] = str(script.parent)
    os.chdir(workdir)
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = search_path
        os.chdir(folder)
