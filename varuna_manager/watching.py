"""The manager's own pulse: time, snapshots, and secrets of jobs that are over."""

import asyncio

from varuna_manager import snapshots
from varuna_manager.clock import Clock
from varuna_manager.consumer import Consumer
from varuna_manager.core.events import Ticked
from varuna_manager.persistence import Database
from varuna_manager.secrecy import SecretBox

TICK_S = 0.1
SNAPSHOT_EVERY = 5_000
_SWEEP_S = 1.0


async def tick(consumer: Consumer, clock: Clock) -> None:
    """Tell the core the time until cancelled; it judges a gap of our own by itself."""
    while True:
        await asyncio.sleep(TICK_S)
        consumer.offer(Ticked(at_s=clock.now_s()))


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
