"""Names the cause of a worker's early end; the manager decides what follows."""

import traceback

from varuna_runtime.spec.errors import (
    CheckpointRefused,
    InvalidInput,
    ModelRefused,
    PeerLost,
    PlanMismatch,
    StepDiverged,
    StoreError,
    VarunaError,
)
from varuna_runtime.wire.v1 import common_pb2
from varuna_runtime.worker.link.meeting import DidNotMeet

_DETAIL_CHARS = 8000
_MESSAGE_CHARS = 500
_CAUSES: tuple[tuple[type[BaseException], common_pb2.FailureCause], ...] = (
    (PeerLost, common_pb2.FailureCause.PEER_LOST),
    (PlanMismatch, common_pb2.FailureCause.PLAN_MISMATCH),
    (CheckpointRefused, common_pb2.FailureCause.START_FAILED),
    (StoreError, common_pb2.FailureCause.START_FAILED),
    (DidNotMeet, common_pb2.FailureCause.START_FAILED),
    (ModelRefused, common_pb2.FailureCause.USER_ERROR),
    (StepDiverged, common_pb2.FailureCause.USER_ERROR),
    (InvalidInput, common_pb2.FailureCause.USER_ERROR),
)


class StartFailed(VarunaError):
    """The rank's own set-up failed: no group, no port, no store."""


def failure_of(err: BaseException) -> common_pb2.Failure:
    """Return the report of an exception; whatever is not ours was raised by the user's code."""
    if isinstance(err, StartFailed):
        cause = common_pb2.FailureCause.START_FAILED
    else:
        found = [cause for kind, cause in _CAUSES if isinstance(err, kind)]
        cause = found[0] if found else common_pb2.FailureCause.USER_ERROR
    text = str(err) if isinstance(err, VarunaError) else f"{type(err).__name__}: {err}"
    return common_pb2.Failure(
        cause=cause,
        message=(text.splitlines() or [type(err).__name__])[0][:_MESSAGE_CHARS],
        detail="".join(traceback.format_exception(err))[-_DETAIL_CHARS:],
        peer_rank=err.rank if isinstance(err, PeerLost) else None,
    )
