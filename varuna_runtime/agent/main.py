"""The agent's outermost loop: signals, and one membership after the other."""

import asyncio
import dataclasses
import os
import uuid
from collections.abc import Coroutine
from pathlib import Path

import structlog

from varuna_runtime.agent import device, single
from varuna_runtime.agent.config import AgentConfig, folders
from varuna_runtime.agent.joining import Door, Joining, own_address
from varuna_runtime.agent.logbook import unhurried_log
from varuna_runtime.agent.membership import Membership, Outcome
from varuna_runtime.agent.notices.opening import open_source
from varuna_runtime.agent.stopping import Stopping
from varuna_runtime.agent.vaulting import VaultKeeper

_FENCED_PAUSE_S = 0.5  # a manager that fences every newcomer must not be stormed
_log = structlog.get_logger("varuna.agent")


def run(config: AgentConfig) -> int:
    """Be the agent of one node until it leaves or is told to stop; returns the exit status.

    Conflict: another agent has its folder.
    """
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # read when the first channel is made
    with unhurried_log(), single.hold(config.home):
        return asyncio.run(serve(completed(config)))


async def serve(config: AgentConfig) -> int:
    """Join; a fenced incarnation is followed by a fresh one. AccessRefused: the manager will not have us."""
    _make_private(config.home)
    stopping = Stopping(config.drain_on_term_s)
    stopping.listen()
    joining = Joining(config)
    door = await _unless_stopped(joining.door(), stopping)
    if door is None:
        return 0
    config = dataclasses.replace(config, host=config.host or own_address(door.address))
    renewing = asyncio.ensure_future(joining.keep_fresh(door))
    renewing.add_done_callback(
        lambda done: None if done.cancelled() or not done.exception() else stopping.stop.set()
    )
    vault = VaultKeeper(config.host, config.copies_bytes or 0)
    vault.open(uuid.uuid4().hex)
    keeping = asyncio.ensure_future(vault.keep())
    try:
        return await _serve(config, door, stopping, vault)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await vault.end()
        if renewing.done():
            renewing.result()  # why we stopped
        renewing.cancel()


async def _serve(config: AgentConfig, door: Door, stopping: Stopping, vault: VaultKeeper) -> int:
    while True:
        incarnation = uuid.uuid4().hex
        _log.info("joining", node=config.node, incarnation=incarnation, manager=door.address)
        notices = open_source(
            config.notices,
            endpoint=config.metadata_endpoint,
            file=folders(config.home, incarnation).notice,
        )
        outcome = await Membership(config, incarnation, door, notices, stopping, vault).run()
        if outcome is not Outcome.FENCED:
            return 0
        await asyncio.sleep(_FENCED_PAUSE_S)


async def _unless_stopped(joining: Coroutine[None, None, Door], stopping: Stopping) -> Door | None:
    """Return the door; None when a signal came first: there is no work to drain yet."""
    opening = asyncio.ensure_future(joining)
    signals = [asyncio.ensure_future(event.wait()) for event in (stopping.stop, stopping.drain)]
    try:
        await asyncio.wait([opening, *signals], return_when=asyncio.FIRST_COMPLETED)
        return opening.result() if opening.done() else None
    finally:
        for each in (opening, *signals):
            each.cancel()
        await asyncio.gather(opening, *signals, return_exceptions=True)


def _make_private(home: Path) -> None:
    """Make the folder, and let no other account of this machine into it, whatever the umask is."""
    home.mkdir(parents=True, exist_ok=True)
    try:
        home.chmod(0o700)
    except PermissionError as err:  # a volume of someone else's
        _log.warning("home not private", home=str(home), reason=str(err))


def completed(config: AgentConfig) -> AgentConfig:
    """Return the config with what was left out found on this machine."""
    gpus = device.gpu_names() if not (config.device_kind and config.slots) else ()
    slots = config.slots or max(1, len(gpus))
    machine_bytes = device.machine_bytes()
    return dataclasses.replace(
        config,
        slots=slots,
        device_kind=config.device_kind or device.device_kind(gpus),
        memory_bytes=config.memory_bytes or machine_bytes // slots,
        copies_bytes=machine_bytes // 4 if config.copies_bytes is None else config.copies_bytes,
        home=config.home.absolute(),
    )
