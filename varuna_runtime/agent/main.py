"""The agent's outermost loop: signals, and one membership after the other."""

import asyncio
import dataclasses
import os
import signal
import uuid

import structlog

from varuna_runtime.agent import device
from varuna_runtime.agent.config import AgentConfig, folders
from varuna_runtime.agent.membership import Membership, Outcome
from varuna_runtime.agent.notices import FileNotices

_FENCED_PAUSE_S = 0.5  # a manager that fences every newcomer must not be stormed
_log = structlog.get_logger("varuna.agent")


def run(config: AgentConfig) -> int:
    """Be the agent of one node until it leaves or is told to stop; returns the exit status."""
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # read when the first channel is made
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(),
    )
    return asyncio.run(serve(completed(config)))


async def serve(config: AgentConfig) -> int:
    """Join; a fenced incarnation is followed by a fresh one."""
    config.home.mkdir(parents=True, exist_ok=True)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _asked_to_stop, stop)
    while True:
        incarnation = uuid.uuid4().hex
        _log.info("joining", node=config.node, incarnation=incarnation, manager=config.manager)
        notices = FileNotices(folders(config.home, incarnation).notice)
        outcome = await Membership(config, incarnation, notices, stop).run()
        if outcome is not Outcome.FENCED:
            return 0
        await asyncio.sleep(_FENCED_PAUSE_S)


def completed(config: AgentConfig) -> AgentConfig:
    """Return the config with what was left out found on this machine."""
    kind = config.device_kind or device.device_kind()
    memory = config.memory_bytes or device.machine_bytes() // config.slots
    return dataclasses.replace(config, device_kind=kind, memory_bytes=memory, home=config.home.absolute())


def _asked_to_stop(stop: asyncio.Event) -> None:
    """The second time is an order: the guard ends the rest."""
    if stop.is_set():
        os.kill(os.getpid(), signal.SIGKILL)
    stop.set()
