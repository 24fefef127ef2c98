"""One incarnation of an agent: carries the supervisor's actions out and its events in."""

import asyncio
import contextlib
import os
from collections.abc import Coroutine
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path

import structlog

from varuna_runtime.agent import actions as a
from varuna_runtime.agent import clock, codec, sockets, verdicts
from varuna_runtime.agent import events as e
from varuna_runtime.agent import records as r
from varuna_runtime.agent.config import AgentConfig, folders
from varuna_runtime.agent.guarding import Guard
from varuna_runtime.agent.joining import Door
from varuna_runtime.agent.launching import Died, LauncherProcess, tail
from varuna_runtime.agent.link import ManagerLink
from varuna_runtime.agent.logs import LAUNCHER_RANK, LogCarrier
from varuna_runtime.agent.notices import NoticeSource
from varuna_runtime.agent.notices.watch import Watch
from varuna_runtime.agent.outbox import Outbox
from varuna_runtime.agent.stillness import LOOK_S, Business, Stillness
from varuna_runtime.agent.stopping import Stopping
from varuna_runtime.agent.supervisor import Limits, Supervisor
from varuna_runtime.agent.vaulting import VaultKeeper
from varuna_runtime.agent.workers import WorkerClient
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.wire.v1 import agent_pb2

_TICK_S = 0.25
_ABSENCE_S = 1.0  # a longer time between two ticks
_GOODBYE_S = 2.0
_END_S = 10.0
_LAST_LOGS_S = 3.0
_SETTLE_S = 2.0  # so long Hello waits to be able to say how the source of notices is
_log = structlog.get_logger("varuna.agent")


class Outcome(StrEnum):
    """Why an incarnation ended."""

    FENCED = "fenced"
    LEFT = "left"
    STOPPED = "stopped"


class Membership:
    """Lives from Hello to the end of the last process it started."""

    def __init__(
        self,
        config: AgentConfig,
        incarnation: str,
        door: Door,
        notices: NoticeSource,
        stopping: Stopping,
        vault: VaultKeeper,
    ) -> None:
        self._config = config
        self._incarnation = incarnation
        self._stopping = stopping
        self._vault = vault
        self._folders = folders(config.home, incarnation)
        self._supervisor = Supervisor(Limits(silence_s=config.silence_s, launcher_s=config.launcher_s))
        self._stillness, self._business = Stillness(config.frozen_s), Business()
        self._events: asyncio.Queue[e.Event] = asyncio.Queue()
        self._launchers: dict[int, LauncherProcess] = {}
        self._workers: dict[r.RankKey, WorkerClient] = {}
        self._sockets: dict[r.RankKey, Path] = {}
        self._num_forks = 0
        self._outbox = Outbox()
        self._link = ManagerLink(
            door.address, door.channel, self._outbox, hello=self._hello, beat=self._beat, obey=self._obey
        )
        self._logs = LogCarrier(config.node, door.channel, self._folders.logs)
        self._guard = Guard(incarnation, (self._folders.run,))
        self._watch = Watch(
            notices,
            config.node,
            report=self._report,
            is_handed_over=self._is_handed_over,
            vanish=self._guard.vanish,
        )
        self._outcome: asyncio.Future[tuple[Outcome, str]] = asyncio.get_running_loop().create_future()
        self._idle = asyncio.Event()
        self._tasks: asyncio.TaskGroup

    async def run(self) -> Outcome:
        """Be a member until fenced, told to leave, or stopped; nothing is left afterwards."""
        for folder in (self._folders.logs, self._folders.bundles):
            folder.mkdir(parents=True, exist_ok=True)
        sockets.make(self._config.home, self._folders.run)
        try:
            await self._guard.start()
            async with asyncio.TaskGroup() as self._tasks:
                standing = [self._tasks.create_task(job) for job in self._standing()]
                outcome, reason = await self._outcome
                _log.info("ending", outcome=outcome.value, reason=reason)
                await self._end(outcome, reason)
                for task in standing:
                    task.cancel()
        finally:
            await self._guard.end()
        return outcome

    def _standing(self) -> tuple[Coroutine[object, object, None], ...]:
        return (
            self._guard.keep(),
            self._loop(),
            self._tick(),
            self._watch_stillness(),
            self._connect(),
            self._logs.run(),
            self._watch.run(),
            self._watch_drain(),
            self._watch_stop(),
        )

    # --- events in -------------------------------------------------------------------------------------

    def _tell(self, event: e.Event) -> None:
        self._events.put_nowait(event)

    async def _loop(self) -> None:
        while True:
            event = await self._events.get()
            for action in self._supervisor.handle(event, clock.now_s()):
                self._perform(action)
            if self._supervisor.is_idle:
                self._idle.set()
            else:
                self._idle.clear()

    async def _tick(self) -> None:
        ticked_s = clock.now_s()
        while True:
            await asyncio.sleep(_TICK_S)
            if clock.now_s() - ticked_s > _ABSENCE_S:
                self._tell(e.StoodStill())
            ticked_s = clock.now_s()
            self._tell(e.Ticked())
            if self._link.is_overdue and not self._supervisor.is_idle:
                self._tell(e.EndAllReceived(reason="no manager for too long"))

    async def _watch_stillness(self) -> None:
        """End what is stopped: nothing else tells it from what is busy."""
        while True:
            await asyncio.sleep(LOOK_S)
            ranks = {pid: key for key, pid in self._supervisor.pids().items()}
            for pid in self._business.look(ranks):
                self._tell(e.RankBusy(key=ranks[pid]))
            launchers = {one.pid: number for number, one in self._launchers.items() if one.pid is not None}
            for pid, stopped_s in self._stillness.look([*ranks, *launchers], clock.now_s()).items():
                if pid in ranks:
                    self._tell(e.RankFrozen(key=ranks[pid], stopped_s=stopped_s))
                else:
                    failure = verdicts.frozen(stopped_s)
                    self._tell(e.LauncherFailed(launcher=launchers[pid], failure=failure))

    def _obey(self, message: agent_pb2.ManagerMessage) -> None:
        if message.HasField("fenced"):
            self._finish(Outcome.FENCED, message.fenced.reason)
        elif message.HasField("leave"):
            self._finish(Outcome.LEFT, message.leave.reason)
        elif message.HasField("retire"):
            self._vault.retire(message.retire.job, message.retire.generation)
        else:
            self._obey_command(message)

    def _obey_command(self, message: agent_pb2.ManagerMessage) -> None:
        try:
            event = codec.command(message)
        except InvalidInput as err:
            self._refuse(message, str(err))
            return
        if isinstance(event, e.StartReceived) and event.order.copies_secret:
            self._vault.admit(event.order.job, event.order.copies_secret)
        elif isinstance(event, e.ForgetReceived):
            self._vault.forget(event.job)
        if event is not None:
            self._tell(event)

    def _refuse(self, message: agent_pb2.ManagerMessage, reason: str) -> None:
        if message.HasField("warm"):
            _log.warning("warm refused", job=message.warm.job, reason=reason)
            self._report(codec.warm_report(message.warm.job, reason))
        else:
            self._refuse_start(message.start, reason)

    def _refuse_start(self, start: agent_pb2.Start, reason: str) -> None:
        """Say it for each rank, so that the manager need not wait for a time-out."""
        _log.warning("start refused", job=start.job, generation=start.generation, reason=reason)
        failed = r.Failed(cause=r.Cause.START_FAILED, message=reason)
        for rank in start.ranks:
            key = r.RankKey(job=start.job, generation=start.generation, rank=rank)
            self._report(codec.rank_report(key, failed))
        self._report(codec.gone(start.job, start.generation))

    async def _connect(self) -> None:
        await self._watch.settle(_SETTLE_S)
        await self._link.run()

    def _is_handed_over(self, seq: int) -> bool:
        """True when the manager knows of the report, nothing runs here, and no copies are left."""
        is_known = self._outbox.has_acknowledged(seq)  # so that it will start nothing any more
        return is_known and not self._supervisor.running() and not self._vault.held_jobs

    async def _watch_drain(self) -> None:
        await self._stopping.drain.wait()
        is_needed = self._link.is_up or self._supervisor.running() or self._vault.held_jobs
        await self._watch.leave(self._stopping.drain_s if is_needed else 0.0, "the agent was told to stop")
        self._finish(Outcome.STOPPED, "the agent was told to stop, and drained")

    async def _watch_stop(self) -> None:
        await self._stopping.stop.wait()
        self._finish(Outcome.STOPPED, "the agent was told to stop")

    # --- the end ---------------------------------------------------------------------------------------

    def _finish(self, outcome: Outcome, reason: str) -> None:
        if not self._outcome.done():
            self._outcome.set_result((outcome, reason))

    async def _end(self, outcome: Outcome, reason: str) -> None:
        self._idle.clear()
        self._tell(e.EndAllReceived(reason=reason))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await self._idle.wait()
        if outcome is not Outcome.FENCED:
            await self._link.say_goodbye(reason, _GOODBYE_S)

    # --- actions out -----------------------------------------------------------------------------------

    def _perform(self, action: a.Action) -> None:
        match action:
            case a.Report():
                _log.info("report", **_named(action.key), report=type(action.report).__name__)
                self._report(codec.rank_report(action.key, action.report))
            case a.ReportStep():
                self._outbox.add_step(action.key, action.step)
            case a.ReportGone():
                self._report(codec.gone(action.job, action.generation))
            case a.ReportWarm():
                _log.info("warm" if not action.reason else "cold", job=action.job, reason=action.reason)
                self._report(codec.warm_report(action.job, action.reason))
            case a.Refuse():
                _log.warning("refused", job=action.job, generation=action.generation, reason=action.reason)
            case a.DropJob():
                self._tasks.create_task(self._drop_job(action.job))
            case a.OpenLauncher() | a.CloseLauncher() | a.Fork() | a.Kill():
                self._perform_on_launcher(action)
            case _:
                self._perform_on_worker(action)

    def _perform_on_launcher(self, action: a.OpenLauncher | a.CloseLauncher | a.Fork | a.Kill) -> None:
        if isinstance(action, a.OpenLauncher):
            self._tasks.create_task(self._run_launcher(action))
            return
        launcher = self._launchers.get(action.launcher)
        if launcher is None:
            return
        match action:
            case a.CloseLauncher():
                launcher.close()
            case a.Fork():
                log = self._logs.path(action.key.job, action.key.generation, action.key.rank)
                launcher.fork(action.key, self._new_socket(action.key), log, action.threads)
            case a.Kill():
                launcher.kill(action.pid)

    async def _run_launcher(self, action: a.OpenLauncher) -> None:
        launcher = LauncherProcess(
            action.launcher,
            action.order,
            folders=self._folders,
            incarnation=self._incarnation,
            log=self._logs.path(action.order.job, action.generation, LAUNCHER_RANK),
            tell=self._tell,
            on_died=self._died,
        )
        self._launchers[action.launcher] = launcher
        try:
            await launcher.run()
        finally:
            del self._launchers[action.launcher]
        for key in launcher.unreported:  # they ended with their launcher
            await self._let_go(key)

    def _perform_on_worker(self, action: a.CallPrepare | a.CallActivate | a.CallDrain | a.CallAbort) -> None:
        key = action.key
        is_forked = key in self._sockets  # else it ended with its launcher before we came to it
        if isinstance(action, a.CallPrepare) and is_forked and key not in self._workers:
            self._workers[key] = WorkerClient(key, self._sockets[key], self._tell)
        worker = self._workers.get(key)
        if worker is None:
            return
        match action:
            case a.CallPrepare():
                self._tasks.create_task(worker.prepare(action.order, self._config.host, self._vault.path))
            case a.CallActivate():
                self._tasks.create_task(worker.activate(action.endpoints, action.resume))
            case a.CallDrain():
                self._tasks.create_task(worker.drain(action.within_s, persist=action.persist))
            case a.CallAbort():
                self._tasks.create_task(worker.abort())

    def _died(self, died: Died) -> None:
        self._tasks.create_task(self._bury(died))

    async def _bury(self, died: Died) -> None:
        """Hear the dead worker's last words before its exit counts."""
        await self._let_go(died.key)
        log = self._logs.path(died.key.job, died.key.generation, died.key.rank)
        self._tell(
            e.RankExited(
                key=died.key,
                exit_code=died.exit_code,
                signal=died.signal,
                log_tail=await asyncio.to_thread(tail, log),
            )
        )

    async def _let_go(self, key: r.RankKey) -> None:
        worker = self._workers.pop(key, None)
        if worker is not None:
            await worker.close()
        self._sockets.pop(key).unlink(missing_ok=True)

    async def _drop_job(self, job: str) -> None:
        with contextlib.suppress(Exception):  # the manager may be away; the job is over
            async with asyncio.timeout(_LAST_LOGS_S):
                await self._logs.carry()
        await self._logs.forget(job)

    # --- messages --------------------------------------------------------------------------------------

    def _report(self, message: agent_pb2.AgentMessage) -> None:
        self._outbox.add(message)
        self._link.wake()

    def _hello(self) -> agent_pb2.Hello:
        return agent_pb2.Hello(
            node=self._config.node,
            incarnation=self._incarnation,
            slots=self._config.slots,
            device_kind=self._config.device_kind,
            memory_bytes=self._config.memory_bytes,
            host=self._config.host,
            version=version("varuna"),
            pid=os.getpid(),
            notices=self._watch.state,
            running=codec.running(self._supervisor.running()),
            vault_port=self._vault.port,
        )

    def _beat(self) -> agent_pb2.Beat:
        return agent_pb2.Beat(running=codec.running(self._supervisor.running()))

    def _new_socket(self, key: r.RankKey) -> Path:
        """Return a path no worker had before: who still listens to an older one must never hear this one."""
        self._num_forks += 1
        self._sockets[key] = self._folders.run / f"{self._num_forks}.sock"
        return self._sockets[key]


def _named(key: r.RankKey) -> dict[str, object]:
    return {"job": key.job, "generation": key.generation, "rank": key.rank}
