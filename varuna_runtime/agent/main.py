"""The agent's outermost loop: signals, and one membership after the other."""

import asyncio
import dataclasses
import os
import uuid

import structlog

from varuna_runtime.agent import device
from varuna_runtime.agent.config import AgentConfig, folders
from varuna_runtime.agent.membership import Membership, Outcome
from varuna_runtime.agent.notices.opening import open_source
from varuna_runtime.agent.stopping import Stopping

_FENCED_PAUSE_S = 0.5  # a manager that fences every newcomer must not be stormed
_log = structlog.get_logger("varuna.agent")


def run(config: AgentConfig) -> int:
    """Be the agent of one node until it leaves or is told to stop; returns the exit status."""
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # read when the first channel is made
    log_as_json()
    return asyncio.run(serve(completed(config)))


def log_as_json() -> None:
    """Log one JSON object a line from here on."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(),
    )


async def serve(config: AgentConfig) -> int:
    """Join; a fenced incarnation is followed by a fresh one."""
    config.home.mkdir(parents=True, exist_ok=True)
    stopping = Stopping(config.drain_on_term_s)
    stopping.listen()
    while True:
        incarnation = uuid.uuid4().hex
        _log.info("joining", node=config.node, incarnation=incarnation, manager=config.manager)
        notices = open_source(
            config.notices,
            endpoint=config.metadata_endpoint,
            file=folders(config.home, incarnation).notice,
        )
        outcome = await Membership(config, incarnation, notices, stopping).run()
        if outcome is not Outcome.FENCED:
            return 0
        await asyncio.sleep(_FENCED_PAUSE_S)


def completed(config: AgentConfig) -> AgentConfig:
    """Return the config with what was left out found on this machine."""
    gpus = device.gpu_names() if not (config.device_kind and config.slots) else ()
    slots = config.slots or max(1, len(gpus))
    return dataclasses.replace(
        config,
        slots=slots,
        device_kind=config.device_kind or device.device_kind(gpus),
        memory_bytes=config.memory_bytes or device.machine_bytes() // slots,
        home=config.home.absolute(),
    )
