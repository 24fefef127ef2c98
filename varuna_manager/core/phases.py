"""Phases of jobs and nodes with their tables of legal transitions; drawn in docs/manager-states.md."""

from collections.abc import Mapping
from enum import StrEnum


class JobPhase(StrEnum):
    """Where a job is; the last three are terminal and never change again."""

    PENDING = "PENDING"  # not started yet: waits for nodes or for its turn
    PROFILING = "PROFILING"  # looks up or measures its profile
    PLANNING = "PLANNING"  # waits for a plan
    STARTING = "STARTING"  # a generation is being prepared and activated
    RUNNING = "RUNNING"  # every rank trains
    DRAINING = "DRAINING"  # every rank stops at an agreed durable step
    PARKED = "PARKED"  # started before or asked for a plan, and has too few nodes now
    CANCELLING = "CANCELLING"  # its processes are being ended
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class NodePhase(StrEnum):
    """Where a node is; only a READY one is planned with."""

    READY = "READY"
    NOTICED = "NOTICED"  # will vanish at a known time
    DRAINING = "DRAINING"  # an operator wants it out of use
    RELEASED = "RELEASED"  # drained, nothing runs on it, told to leave
    DISCONNECTED = "DISCONNECTED"  # its stream ended, its lease still runs
    LEFT = "LEFT"  # said goodbye
    LOST = "LOST"  # lease ended, superseded, or gone from its provider


_P = JobPhase
_ENDS = {_P.CANCELLING, _P.CANCELLED, _P.FAILED}

JOB_TRANSITIONS: Mapping[JobPhase, frozenset[JobPhase]] = {
    _P.PENDING: frozenset({_P.PROFILING, _P.PLANNING, _P.CANCELLED, _P.FAILED}),
    _P.PROFILING: frozenset({_P.PLANNING, _P.PARKED} | _ENDS),
    _P.PLANNING: frozenset({_P.PROFILING, _P.STARTING, _P.PARKED} | _ENDS),
    _P.STARTING: frozenset({_P.PLANNING, _P.RUNNING, _P.SUCCEEDED} | _ENDS),
    _P.RUNNING: frozenset({_P.PLANNING, _P.DRAINING, _P.SUCCEEDED} | _ENDS),
    _P.DRAINING: frozenset({_P.PLANNING, _P.SUCCEEDED} | _ENDS),
    _P.PARKED: frozenset({_P.PROFILING, _P.PLANNING} | _ENDS),
    _P.CANCELLING: frozenset({_P.CANCELLED}),
    _P.SUCCEEDED: frozenset(),
    _P.FAILED: frozenset(),
    _P.CANCELLED: frozenset(),
}

_N = NodePhase
_GOES = {_N.DISCONNECTED, _N.LEFT, _N.LOST}

NODE_TRANSITIONS: Mapping[NodePhase, frozenset[NodePhase]] = {
    _N.READY: frozenset({_N.NOTICED, _N.DRAINING} | _GOES),
    _N.NOTICED: frozenset({_N.READY, _N.DRAINING} | _GOES),
    _N.DRAINING: frozenset({_N.RELEASED} | _GOES),
    _N.RELEASED: frozenset(_GOES),
    _N.DISCONNECTED: frozenset({_N.READY, _N.NOTICED, _N.DRAINING, _N.LEFT, _N.LOST}),
    _N.LEFT: frozenset(),
    _N.LOST: frozenset(),
}
"""Of one incarnation; a new incarnation of the node starts READY."""

TERMINAL = frozenset(phase for phase, to in JOB_TRANSITIONS.items() if not to)
"""Phases of a job that is over."""
WAITING = frozenset({_P.PENDING, _P.PARKED})
"""Phases of a job that holds no node."""
HOLDING = frozenset(_P) - TERMINAL - WAITING
"""Phases of the one job that holds the pool."""
TRAINING = frozenset({_P.RUNNING, _P.DRAINING})
"""Phases in which a job commits steps."""
CONNECTED = frozenset({_N.READY, _N.NOTICED, _N.DRAINING, _N.RELEASED})
"""Phases in which an action can reach the node."""
GONE = frozenset({_N.LEFT, _N.LOST})
"""Phases of an incarnation that never comes back."""
