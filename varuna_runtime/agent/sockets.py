"""The private folders of incarnations' sockets; one outside the home has a link inside, to be found by."""

import shutil
from pathlib import Path

OUTSIDE_PREFIX = "varuna-"  # of folders under the temp dir, for homes too deep for a socket's path


def make(home: Path, run: Path) -> None:
    """Make the folder `run`, and remove what earlier incarnations of this home left.

    They leave something only when their guard was killed beside them.
    """
    remove_all(home)
    run.mkdir(parents=True, mode=0o700)
    if not run.is_relative_to(home):
        links = home / "run"
        links.mkdir()
        (links / run.name).symlink_to(run)


def remove_all(home: Path) -> None:
    """Remove every socket folder of a node's home; no agent of it may be alive."""
    for entry in sorted((home / "run").glob("*")):
        if not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
            continue
        target = entry.readlink()
        if target.name.startswith(OUTSIDE_PREFIX):
            shutil.rmtree(target, ignore_errors=True)
        entry.unlink(missing_ok=True)
    shutil.rmtree(home / "run", ignore_errors=True)
