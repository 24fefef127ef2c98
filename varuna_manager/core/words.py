"""The short fixed words of the event list: what happened. The why beside them is free text."""

from enum import StrEnum


class What(StrEnum):
    """One word per kind of line that a person sees."""

    MANAGER_STARTED = "manager-started"
    SUBMITTED = "submitted"
    CANCEL_REQUESTED = "cancel-requested"
    PROFILING = "profiling"
    PROFILED = "profiled"
    PLANNED = "planned"
    STARTED = "started"
    RUNNING = "running"
    MORPH = "morph"
    DRAINED = "drained"
    DURABLE = "durable"
    PARKED = "parked"
    RESUMED = "resumed"
    RANK_FAILED = "rank-failed"
    RETRY = "retry"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    NODE_JOINED = "node-joined"
    NODE_BACK = "node-back"
    NODE_DISCONNECTED = "node-disconnected"
    NODE_LEFT = "node-left"
    NODE_LOST = "node-lost"
    NODE_FENCED = "node-fenced"
    NODE_NOTICE = "node-notice"
    NODE_NOTICE_CANCELLED = "node-notice-cancelled"
    NODE_DRAIN = "node-drain"
    NODE_RELEASED = "node-released"
    NODE_WARM = "node-warm"
    NODE_COLD = "node-cold"


def counted(number: int, noun: str) -> str:
    """Return e.g. `1 node` or `3 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
