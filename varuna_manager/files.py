"""Small files that are either the old or the new text, never a part of one."""

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

import structlog

_log = structlog.get_logger()


def keep_private(folder: Path) -> None:
    """Let no other account into `folder`, whatever the umask is; on another's volume it stays as it is."""
    try:
        folder.chmod(0o700)
    except PermissionError as err:
        _log.warning("folder not private", folder=str(folder), why=str(err))


def replace(path: Path, text: str) -> None:
    """Put `text` at `path` atomically and durably; the file is readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as temp:
        try:
            temp.write(text)
            temp.flush()
            os.fsync(temp.fileno())
            Path(temp.name).replace(path)
        except BaseException:
            Path(temp.name).unlink(missing_ok=True)
            raise
