"""Small files that are either the old or the new text, never a part of one."""

import os
from pathlib import Path
from tempfile import NamedTemporaryFile


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
