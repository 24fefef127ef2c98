"""A small file system of its own, in a file of the machine: it can be full, and stand still. Needs root."""

import os
import subprocess
from pathlib import Path
from types import TracebackType

_SIZE = 64 << 20


class SmallDisk:
    """A mounted folder; a context manager, after which nothing of it is left."""

    def __init__(self, folder: Path) -> None:
        self._image = folder / "disk.img"
        self.root = folder / "disk"

    @staticmethod
    def is_possible() -> bool:
        """Whether this machine lets us mount one."""
        return os.geteuid() == 0 and Path("/dev/loop-control").exists()

    def __enter__(self) -> "SmallDisk":
        self.root.mkdir(parents=True)
        with self._image.open("xb") as image:
            image.truncate(_SIZE)
        _run("mkfs.ext4", "-q", "-m", "0", str(self._image))
        _run("mount", "-o", "loop", str(self._image), str(self.root))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.go_on()
        _run("umount", str(self.root))
        self._image.unlink()

    def fill(self) -> None:
        """Leave no room."""
        with (self.root / "filler").open("wb") as filler:
            try:
                while True:
                    os.posix_fallocate(filler.fileno(), filler.tell(), 1 << 16)
                    filler.seek(1 << 16, os.SEEK_CUR)
            except OSError:
                pass

    def empty(self) -> None:
        """Give the room back."""
        (self.root / "filler").unlink(missing_ok=True)

    def stand_still(self) -> None:
        """Have every write wait; whoever writes cannot even be killed meanwhile."""
        _run("fsfreeze", "-f", str(self.root))

    def go_on(self) -> None:
        """Let writes go on; idempotent."""
        subprocess.run(["fsfreeze", "-u", str(self.root)], capture_output=True, timeout=60, check=False)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert not done.returncode, f"{' '.join(command)}: {done.stderr}"
