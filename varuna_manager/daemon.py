"""The manager process: puts the parts together, runs them, and stops without touching what agents run."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from varuna_manager import config as settings
from varuna_manager import files, listening, serving, single, snapshots
from varuna_manager.clock import Clock
from varuna_manager.cloud import processes
from varuna_manager.cloud.opening import open_provider
from varuna_manager.cloud.provider import Provider
from varuna_manager.config import ManagerConfig
from varuna_manager.consumer import Consumer
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.events import ManagerStarted, StepSeen
from varuna_manager.core.state import State
from varuna_manager.core.step import step
from varuna_manager.dispatch import Dispatcher, keep_profile
from varuna_manager.endings import report_endings
from varuna_manager.keeper import Keeper
from varuna_manager.links import Links
from varuna_manager.listening import Bound, Door
from varuna_manager.logbook import Logbook
from varuna_manager.means import Means
from varuna_manager.notes import DatabaseNotes
from varuna_manager.persistence import Database
from varuna_manager.planning import PlanningProcess
from varuna_manager.pool_settings import StaticPool
from varuna_manager.rows import Batch
from varuna_manager.rpc.agents import AgentLinkService, LinkSettings
from varuna_manager.rpc.clients import ClientService
from varuna_manager.secrecy import SecretBox, generation_key
from varuna_manager.sizing.books import Books
from varuna_manager.sizing.settings import settings as sizing_settings
from varuna_manager.watching import forget_secrets, take_snapshots, tick
from varuna_runtime.spec.errors import VarunaError
from varuna_runtime.store import Store, open_store
from varuna_runtime.wire.v1 import agent_pb2_grpc, client_pb2_grpc

_log = structlog.get_logger()
_STOP_GRACE_S = 0.5
_REMEMBERED_STEPS = 20


def run(config: ManagerConfig) -> None:
    """Serve until SIGTERM or SIGINT. Conflict: another manager has the home or the port."""
    _log_as_json()
    settings.checked(config)
    with ExitStack() as held:
        held.enter_context(single.hold(config.places.lock))
        files.keep_private(config.places.manager)
        try:
            asyncio.run(_run(config, held))
        except ExceptionGroup as group:
            first = group.exceptions[0]
            raise VarunaError(f"the manager cannot go on: {type(first).__name__}: {first}") from group


async def _run(config: ManagerConfig, held: ExitStack) -> None:
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    bound = listening.bound(config)  # before the store is touched: a second manager must not take it over
    tasks = asyncio.TaskGroup()
    parts = _assembled(config, bound, held, tasks)
    async with tasks:
        workers = [
            tasks.create_task(parts.consumer.run()),
            tasks.create_task(tick(parts.consumer, parts.clock)),
            tasks.create_task(forget_secrets(parts.secrets, parts.consumer)),
            tasks.create_task(take_snapshots(parts.database, parts.consumer)),
        ]
        try:
            await _take_over(parts)
            workers.append(tasks.create_task(parts.keeper.run(parts.links.broken)))
            await _serve(parts)
            workers.append(tasks.create_task(parts.door.keep()))
            if parts.door.desk is not None:
                await parts.door.desk.keep_admin_token(config.places.admin_token)
            here = serving.Serving(
                address=parts.door.address,
                epoch=parts.started.epoch,
                process=processes.own(),
                is_tls=config.is_tls,
            )
            serving.write(config.places, here)
            _log.info("serving", address=here.address, epoch=here.epoch, home=str(config.places.root))
            await stop.wait()
            _log.info("stopping", why="asked to; agents keep their workers")
        finally:
            parts.consumer.close()
            parts.dispatcher.close()
            await parts.door.server.stop(_STOP_GRACE_S)
        for worker in workers:
            worker.cancel()
    # Another version may start next: it must not judge anew what this one decided.
    parts.database.keep_snapshot(snapshots.taken(parts.consumer.state, parts.consumer.journal_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    consumer: Consumer
    dispatcher: Dispatcher
    database: Database
    clock: Clock
    keeper: Keeper
    links: Links
    secrets: SecretBox
    store_url: str
    agents: AgentLinkService
    clients: ClientService
    started: ManagerStarted
    door: Door


def _assembled(config: ManagerConfig, bound: Bound, held: ExitStack, tasks: asyncio.TaskGroup) -> _Parts:
    home = config.places
    database = Database(home.journal)
    held.callback(database.close)
    planning = PlanningProcess()
    held.callback(planning.close)
    planning.start()
    means = Means(
        links=Links(),
        database=database,
        store=open_store(config.store_url),
        store_url=config.store_url,
        secrets=SecretBox(home.secrets),
        generation_key=generation_key(home.secret_key),
        clock=Clock(not_before_s=database.last_at_s()),
        plan=planning.plan,
    )
    dispatcher = Dispatcher(means, tasks)
    consumer = Consumer(
        snapshots.recovered(database),
        step=step,
        commit=_Committing(database, means.store, held),
        dispatch=dispatcher.dispatch,
        journal_id=database.last_id(),
    )
    dispatcher.answer_to(consumer.offer)
    door = listening.door(bound, config, database, consumer, means.clock)
    started = ManagerStarted(
        at_s=means.clock.now_s(),
        epoch=database.next_epoch(),
        config=CoreConfig(beat_s=config.beat_s, suspect_s=config.suspect_s, lease_s=config.lease_s),
    )
    logbook = Logbook(home.logs, max_job_bytes=config.max_log_bytes_per_job, mask=means.secrets.masked)
    link_settings = _link_settings(config, started.epoch)
    books = Books(sizing_settings(config.pools, config.sizing))
    return _Parts(
        consumer=consumer,
        dispatcher=dispatcher,
        database=database,
        clock=means.clock,
        keeper=Keeper(
            _providers(config, database, door),
            books,
            consumer,
            means.clock,
            on_reading=lambda pool, reading: door.hand_over(
                pool, reading, consumer.state, means.clock.now_s()
            ),
        ),
        links=means.links,
        secrets=means.secrets,
        store_url=means.store_url,
        agents=AgentLinkService(consumer, means.links, logbook, means.clock, link_settings, door.desk),
        clients=ClientService(means, consumer, logbook, books, desk=door.desk, book=door.book),
        started=started,
        door=door,
    )


def _link_settings(config: ManagerConfig, epoch: int) -> LinkSettings:
    return LinkSettings(
        epoch=epoch,
        beat_s=config.beat_s,
        lease_s=config.lease_s,
        stop_on_disconnect_after_s=config.stop_on_disconnect_after_s,
    )


def _providers(config: ManagerConfig, database: Database, door: Door) -> dict[str, Provider]:
    return {
        pool.name: open_provider(
            pool,
            notes=DatabaseNotes(database, f"pool {pool.name}"),
            home=config.places,
            manager_address=door.advertised if isinstance(pool, StaticPool) else door.address,
            ticket=None if door.desk is None else door.ticket,
        )
        for pool in config.pools
    }


async def _take_over(parts: _Parts) -> None:
    """Record the new epoch in the journal and look at the cloud, before anyone is served."""
    for job in parts.secrets.jobs() - parts.consumer.state.jobs.keys():
        parts.secrets.remove(job)  # its submit never reached the journal
    for seen in _remembered(parts.database, parts.consumer.state):
        parts.consumer.offer(seen)
    await parts.consumer.post(parts.started)
    # Before the cloud is asked: of a job that is over it does not matter which machines are gone.
    await report_endings(parts.consumer, parts.store_url, parts.clock)
    await parts.keeper.look()


def _remembered(database: Database, state: State) -> Iterator[StepSeen]:
    """Yield the last steps of the generations under way, so that progress is known before new ones come."""
    for job in state.iter_open():
        for row in database.newest_steps(job.job, generation=job.generation, limit=_REMEMBERED_STEPS):
            yield StepSeen(
                at_s=row.at_s,
                job=row.job,
                generation=row.generation,
                step=row.step,
                loss=row.loss,
                samples=row.samples,
                step_s=row.step_s,
                loss_hex=row.loss_hex,
            )


async def _serve(parts: _Parts) -> None:
    server = parts.door.server
    agent_pb2_grpc.add_AgentLinkServicer_to_server(parts.agents, server)  # type: ignore[no-untyped-call]
    client_pb2_grpc.add_ClientServicer_to_server(parts.clients, server)  # type: ignore[no-untyped-call]
    healthy = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    await server.start()
    await healthy.set("", health_pb2.HealthCheckResponse.SERVING)


class _Committing:
    """Commits, then shares new profiles through the store without anyone waiting for it."""

    def __init__(self, database: Database, store: Store, held: ExitStack) -> None:
        self._database = database
        self._store = store
        self._sharing = held.enter_context(ThreadPoolExecutor(max_workers=1, thread_name_prefix="share"))

    def __call__(self, batch: Batch) -> None:
        self._database.commit(batch)
        for row in batch.profiles:
            self._sharing.submit(keep_profile, self._store, row)


def _log_as_json() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
