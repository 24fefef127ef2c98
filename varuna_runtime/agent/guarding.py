"""Keeps a guard process beside the agent, one per incarnation."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from varuna_runtime.agent import guard
from varuna_runtime.agent.launching import MARK

_END_S = 5.0


class Guard:
    """The guard waits on a pipe whose other end only this process holds."""

    def __init__(self, incarnation: str, folders: tuple[Path, ...]) -> None:
        self._marker = f"{MARK}={incarnation}"
        self._folders = folders
        self._pipe = -1
        self._process: asyncio.subprocess.Process | None = None

    async def keep(self) -> None:
        """Start the guard, and again whenever somebody ends it, until cancelled."""
        while True:
            await self.start()
            assert self._process is not None
            await self._process.wait()
            self._close_pipe()

    async def start(self) -> None:
        """Start it unless it is there."""
        if self._process is not None and self._process.returncode is None:
            return
        read_end, self._pipe = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", guard.__file__),
                *(str(read_end), str(os.getpid()), self._marker, *map(str, self._folders)),
                env={},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                pass_fds=(read_end,),
                start_new_session=True,
                cwd="/",
            )
        finally:
            os.close(read_end)

    def vanish(self) -> None:
        """Have this process and all it started killed, as the cloud would."""
        try:
            os.write(self._pipe, guard.VANISH)
        except OSError:  # no guard just now; our children follow us by their parent-death signal
            os.kill(os.getpid(), signal.SIGKILL)

    async def end(self) -> None:
        """Let it sweep and end; everything marked is dead afterwards."""
        self._close_pipe()
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await self._process.wait()

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
