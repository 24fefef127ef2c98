"""The manager's own pulse: time, the provider's view of the nodes, and secrets of jobs that are over."""

import asyncio
import contextlib

import structlog

from varuna_manager import snapshots
from varuna_manager.clock import Clock
from varuna_manager.cloud.provider import InstancePhase, Provider, ProviderError
from varuna_manager.consumer import Consumer
from varuna_manager.core.events import NodeLeft, Ticked
from varuna_manager.persistence import Database
from varuna_manager.secrecy import SecretBox

_log = structlog.get_logger()
TICK_S = 0.1
POLL_S = 1.0
SNAPSHOT_EVERY = 5_000
_DYING_S = 0.1  # the sockets of a killed process close a little before it counts as dead
_POLL_TIMEOUT_S = 30.0
_SWEEP_S = 1.0


async def tick(consumer: Consumer, clock: Clock) -> None:
    """Tell the core the time until cancelled; it judges a gap of our own by itself."""
    while True:
        await asyncio.sleep(TICK_S)
        consumer.offer(Ticked(at_s=clock.now_s()))


async def poll_provider(
    provider: Provider, consumer: Consumer, clock: Clock, broken: asyncio.Event, *, every_s: float = POLL_S
) -> None:
    """Ask the provider again and again until cancelled, and at once when a stream broke."""
    trouble = ""
    while True:
        await _until_due(broken, every_s)
        found = await report_gone(provider, consumer, clock)
        if found != trouble and found:
            _log.warning("provider unavailable", why=found)
        trouble = found


async def _until_due(broken: asyncio.Event, every_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(every_s):
            await broken.wait()
        await asyncio.sleep(_DYING_S)
    broken.clear()


async def report_gone(provider: Provider, consumer: Consumer, clock: Clock) -> str:
    """Report the nodes the provider knows to be gone: its word stands above any heartbeat.

    Returns why there was no answer, or an empty string. Without an answer nothing is known, so no
    node changes.
    """
    try:
        async with asyncio.timeout(_POLL_TIMEOUT_S):
            reading = await asyncio.to_thread(provider.read, clock.now_s())
    except (ProviderError, TimeoutError) as err:
        return str(err) or f"no answer within {_POLL_TIMEOUT_S:g} s"
    for seen in reading.instances:
        node = consumer.state.nodes.get(seen.node)
        if seen.phase is InstancePhase.GONE and node is not None and not node.is_gone:
            await consumer.post(
                NodeLeft(at_s=clock.now_s(), node=seen.node, incarnation=node.incarnation, reason=seen.reason)
            )
    return ""


async def take_snapshots(database: Database, consumer: Consumer) -> None:
    """Snapshot the state whenever enough was journaled since the last time, until cancelled."""
    newest = database.snapshot()
    done = newest.journal_id if newest else 0
    while True:
        await asyncio.sleep(_SWEEP_S)
        state, journal_id = consumer.state, consumer.journal_id
        if journal_id - done >= SNAPSHOT_EVERY:
            row = await asyncio.to_thread(snapshots.taken, state, journal_id)
            await asyncio.to_thread(database.keep_snapshot, row)
            done = journal_id


async def forget_secrets(secrets: SecretBox, consumer: Consumer) -> None:
    """Remove the secrets of jobs that are over until cancelled."""
    while True:
        await asyncio.sleep(_SWEEP_S)
        for job in secrets.jobs():
            if job in consumer.state.jobs and consumer.state.jobs[job].is_over:
                secrets.remove(job)
