"""Running a user's script as `__main__` under a host, as `python script.py` would."""

from collections.abc import Sequence
from pathlib import Path

from varuna_runtime.worker.hosts import Host


def run_script(path: Path, args: Sequence[str], workdir: Path, host: Host) -> None:
    """Run `path` (relative to `workdir`) with `host` behind `varuna.train`, until it ends or the host stops it.

    Sets the working directory, sys.argv and sys.path[0] and puts them back. What the script raises,
    SystemExit included, passes through; InvalidInput means that there is no such file.
    """
    raise NotImplementedError(path, args, workdir, host)
