"""One launcher process: bundle, setup command, script, forks; ends it with everything below it."""

import asyncio
import contextlib
import hashlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from varuna_runtime.agent import events as e
from varuna_runtime.agent import guard
from varuna_runtime.agent import records as r
from varuna_runtime.agent.config import Folders, child_environment
from varuna_runtime.spec.errors import InvalidInput, VarunaError
from varuna_runtime.store.bundle import fetch
from varuna_runtime.store.urls import open_store
from varuna_runtime.wire import launch

Tell = Callable[[e.Event], None]
MARK = "VARUNA_INCARNATION"
_LAUNCHER_MARK = "VARUNA_LAUNCHER"
_LINE_LIMIT = 1 << 20
_LOOK_S = 0.25
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """A worker process is reaped."""

    key: r.RankKey
    exit_code: int | None
    signal: int | None


class LauncherProcess:
    """Runs from construction of its task until nothing of it is left; then LauncherGone is told."""

    def __init__(
        self,
        number: int,
        order: r.LauncherOrder,
        *,
        folders: Folders,
        incarnation: str,
        log: Path,
        tell: Tell,
        on_died: Callable[[Died], None],
    ) -> None:
        self._number = number
        self._order = order
        self._folders = folders
        self._incarnation = incarnation
        self._log = log
        self._tell = tell
        self._on_died = on_died
        self._mark = f"{incarnation}-{number}"
        self._writer: asyncio.StreamWriter | None = None
        self._keys: dict[int, r.RankKey] = {}  # pid -> rank
        self._closing = asyncio.Event()
        self._families: list[guard.Family] = []
        self.pid: int | None = None  # once the script runs

    @property
    def unreported(self) -> tuple[r.RankKey, ...]:
        """The forked ranks of which no death was told; once `run` is over they are dead, too."""
        return tuple(self._keys.values())

    async def run(self) -> None:
        """Own the launcher's whole life."""
        message = "the launcher was closed"
        body = asyncio.ensure_future(self._live())
        closing = asyncio.ensure_future(self._closing.wait())
        looking = asyncio.ensure_future(self._look())
        try:
            await asyncio.wait({body, closing}, return_when=asyncio.FIRST_COMPLETED)
            if body.done():
                message = body.result()
        except (VarunaError, OSError) as err:
            failure = r.Failed(cause=r.Cause.START_FAILED, message=f"the launcher could not start: {err}")
            self._tell(e.LauncherFailed(launcher=self._number, failure=failure))
        finally:
            for task in (body, closing, looking):
                task.cancel()
            await asyncio.gather(body, closing, looking, return_exceptions=True)
            if self._writer is not None:
                self._writer.close()
            await asyncio.to_thread(self._end_all)
        self._tell(e.LauncherGone(launcher=self._number, message=message))

    def close(self) -> None:
        """End it now; idempotent."""
        self._closing.set()

    def fork(self, key: r.RankKey, socket_path: Path, log: Path, threads: int) -> None:
        """Ask for a worker; answered by RankForked, or by LauncherGone."""
        self._send(
            launch.ForkRank(
                job=key.job,
                generation=key.generation,
                rank=key.rank,
                socket=str(socket_path),
                log=str(log),
                threads=threads,
            )
        )

    def kill(self, pid: int) -> None:
        """Ask for a worker's end; answered by its death."""
        self._send(launch.KillRank(pid=pid))

    def _send(self, message: launch.Message) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(launch.encode(message))

    async def _look(self) -> None:
        """Remember who is below, for those that shed every other mark."""
        while True:
            for family in self._families:
                family.look()
            await asyncio.sleep(_LOOK_S)

    def _end_all(self) -> None:
        guard.end_marked(f"{_LAUNCHER_MARK}={self._mark}")
        for family in self._families:
            family.end()

    async def _live(self) -> str:
        workdir = await asyncio.to_thread(
            fetch, open_store(self._order.bundle_store_url), self._order.bundle, self._folders.bundles
        )
        if self._order.spec.setup and not await self._set_up(workdir):
            return "the setup command failed"
        ours, theirs = socket.socketpair()
        with theirs:
            process = await self._spawn(workdir, theirs.fileno())
        self._families.append(guard.Family(process.pid))
        self.pid = process.pid
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=_LINE_LIMIT)
        order = launch.RunScript(
            entrypoint=self._order.spec.entrypoint,
            args=self._order.spec.args,
            workdir=str(workdir),
            job_json=self._order.job_json.decode(),
        )
        self._send(order)
        nonsense = await self._listen(reader)
        self._writer.close()  # a launcher that only stopped making sense ends by this
        return f"the launcher ended with {_how(await process.wait())}{nonsense}"

    async def _set_up(self, workdir: Path) -> bool:
        """Run a setup command once per bundle on this node; a marker file remembers success."""
        command = hashlib.sha256(self._order.spec.setup.encode()).hexdigest()[:16]
        marker = workdir.parent / f"{workdir.name}.{command}.set-up"
        if marker.exists():
            return True
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_shell(
                self._order.spec.setup,
                cwd=workdir,
                env=self._environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._families.append(guard.Family(process.pid))
        code = await process.wait()
        if code == 0:
            marker.touch()
            return True
        message = f"the setup command ended with {_how(code)}: {self._order.spec.setup}"
        detail = await asyncio.to_thread(tail, self._log)
        failure = r.Failed(cause=r.Cause.USER_ERROR, message=message, detail=detail)
        self._tell(e.LauncherFailed(launcher=self._number, failure=failure))
        return False

    async def _spawn(self, workdir: Path, fd: int) -> asyncio.subprocess.Process:
        arguments = (
            "-P",
            "-m",
            "varuna_runtime.worker.launcher",
            "--fd",
            str(fd),
            "--agent",
            str(os.getpid()),
        )
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                cwd=workdir,
                env=self._environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(fd,),
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        """One thread while forking is possible; a worker raises its own count after the fork."""
        ours = {MARK: self._incarnation, _LAUNCHER_MARK: self._mark, "PYTHONUNBUFFERED": "1"}
        ours["VARUNA_SHARDS"] = str(self._folders.shards)
        ours |= dict.fromkeys(_ONE_THREAD, "1")
        ours["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # its fork handlers hang data loaders' forks in a worker
        return child_environment() | self._order.spec.env | self._order.secrets | ours

    async def _listen(self, reader: asyncio.StreamReader) -> str:
        """Hear the launcher out; return what made no sense, to be added to how it ended."""
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                try:
                    self._heard(launch.decode(line))
                except InvalidInput as err:
                    return f" after it wrote {line[:80]!r}: {err}"
        return ""

    def _heard(self, message: launch.Message) -> None:
        match message:
            case launch.ScriptHeld():
                self._tell(e.LauncherReady(launcher=self._number))
            case launch.ScriptFailed():
                cause = r.Cause.HANG if message.is_hang else r.Cause.USER_ERROR
                failure = r.Failed(cause=cause, message=message.message, detail=message.detail)
                self._tell(e.LauncherFailed(launcher=self._number, failure=failure))
            case launch.Forked():
                key = r.RankKey(job=self._order.job, generation=message.generation, rank=message.rank)
                self._keys[message.pid] = key
                self._tell(e.RankForked(key=key, pid=message.pid))
            case launch.Exited():
                key = self._keys.pop(message.pid)
                self._on_died(Died(key=key, exit_code=message.exit_code, signal=message.signal))
            case _:
                pass


def tail(log: Path, num_bytes: int = 4096) -> str:
    """Return the last bytes of a file as text; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - num_bytes))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
