"""Keeps a vault process beside the agent: it outlives workers, launchers and incarnations, not the agent."""

import asyncio
import contextlib
import os
import socket

import structlog

from varuna_runtime.agent import guard
from varuna_runtime.agent.config import child_environment
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.vault.messages import Held, Op, Request
from varuna_runtime.vault.starting import Doors, command, open_doors

_READY_S = 30.0  # generous on a crowded machine
_END_S = 2.0
_MOST_FAILURES = 3  # in a row, before it is given up
_PAUSE_S = 0.5
_MOST_BYTES = 1 << 20  # of what it says at once
_log = structlog.get_logger("varuna.agent")


class VaultKeeper:
    """One agent's. Its sockets are open before the process is, and while that is started anew."""

    def __init__(self, host: str, limit_bytes: int) -> None:
        self._host = host
        self._limit_bytes = limit_bytes
        self._doors: Doors | None = None
        self._secrets: dict[str, str] = {}
        self._held: tuple[str, ...] = ()
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def port(self) -> int:
        """Where other nodes call it; 0: there is none, no copies are kept here."""
        return 0 if self._doors is None else self._doors.port

    @property
    def path(self) -> str:
        """Where workers call it; empty if there is none."""
        return "" if self._doors is None else self._doors.path

    @property
    def held_jobs(self) -> tuple[str, ...]:
        """The jobs of which it holds copies."""
        return self._held

    def admit(self, job: str, secret: str) -> None:
        """Have it serve who knows the job's secret."""
        self._secrets[job] = secret
        self._say(Request(op=Op.ADMIT, job=job, secret=secret))

    def retire(self, job: str, before_generation: int) -> None:
        """Have it drop copies of older generations."""
        self._say(Request(op=Op.RETIRE, job=job, generation=before_generation))

    def forget(self, job: str) -> None:
        """Have it drop all that there is of a job."""
        self._secrets.pop(job, None)
        self._say(Request(op=Op.FORGET, job=job))

    def open(self, name: str) -> None:
        """Listen, under a `name` that nobody else has on this machine.

        Without an address to listen on, or without a limit, there will be no vault.
        """
        if not self._limit_bytes:
            return
        try:
            self._doors = open_doors(self._host, name)
        except OSError as err:
            _log.warning("no copies here", host=self._host, reason=str(err))

    async def keep(self) -> None:
        """Run the process, and anew whenever it ends, until cancelled; `end` comes after that."""
        failures = 0
        while self._doors is not None:
            was_ready = await self._live(self._doors)
            failures = 0 if was_ready else failures + 1
            if failures >= _MOST_FAILURES:
                _log.error("no copies here", reason="the vault does not start")
                self._close_doors()
                return
            await asyncio.sleep(_PAUSE_S)

    async def end(self) -> None:
        """Let go of it and of all copies; it ends by itself, or is killed."""
        if self._writer is not None:
            self._writer.close()
        self._close_doors()
        if self._process is None:
            return
        try:
            async with asyncio.timeout(_END_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _live(self, doors: Doors) -> bool:
        """Run it once; returns whether it came to serve."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await self._spawn(doors, theirs)
        reader, self._writer = await asyncio.open_connection(sock=ours)
        for job, secret in sorted(self._secrets.items()):
            self._say(Request(op=Op.ADMIT, job=job, secret=secret))
        was_ready = False
        try:
            async with asyncio.timeout(_READY_S):
                self._hear(await _frame(reader))
            was_ready = True
            _log.info("vault", port=doors.port, pid=self._process.pid, limit_bytes=self._limit_bytes)
            while True:
                self._hear(await _frame(reader))
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError, InvalidInput) as err:
            reason = str(err) or type(err).__name__
        self._writer.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        code = await self._process.wait()
        _log.warning("vault gone", jobs=self._held, exit_code=code, reason=reason)
        self._writer, self._held = None, ()
        return was_ready

    async def _spawn(self, doors: Doors, theirs: socket.socket) -> asyncio.subprocess.Process:
        passed = (theirs.fileno(), doors.local.fileno(), doors.remote.fileno())
        return await asyncio.create_subprocess_exec(
            *command(doors, theirs, agent=os.getpid(), limit_bytes=self._limit_bytes),
            env=child_environment() | {guard.SPARED: str(os.getpid())},
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=passed,
            start_new_session=True,
        )

    def _hear(self, text: bytes) -> None:
        self._held = canonical.loads(Held, text).jobs

    def _say(self, request: Request) -> None:
        if self._writer is not None and not self._writer.is_closing():
            text = canonical.dumps(request)
            self._writer.write(len(text).to_bytes(4, "big") + text)

    def _close_doors(self) -> None:
        if self._doors is not None:
            self._doors.close()
            self._doors = None


async def _frame(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(4), "big")
    if length > _MOST_BYTES:
        raise InvalidInput(f"the vault said {length} bytes at once")
    return await reader.readexactly(length)
