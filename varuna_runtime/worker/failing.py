"""Names the cause of a worker's early end; the manager decides what follows."""

import traceback

from varuna_runtime.spec.errors import (
    CheckpointRefused,
    InvalidInput,
    ModelRefused,
    PeerFailed,
    PeerLost,
    PlanMismatch,
    StepDiverged,
    StoreError,
    VarunaError,
)
from varuna_runtime.spec.generation import Cause, Fault
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
    """Return the report of an exception; whatever is not ours was raised by the user's code.

    A failure that a peer told of is reported in that peer's words.
    """
    if isinstance(err, PeerFailed):
        return common_pb2.Failure(
            cause=err.fault.cause.name,
            message=err.fault.message,
            detail=err.fault.detail,
            peer_rank=err.fault.rank,
        )
    if isinstance(err, StartFailed):
        cause = common_pb2.FailureCause.START_FAILED
    else:
        found = [cause for kind, cause in _CAUSES if isinstance(err, kind)]
        cause = found[0] if found else common_pb2.FailureCause.USER_ERROR
    text = str(err) if isinstance(err, VarunaError) else f"{type(err).__name__}: {err}"
    return common_pb2.Failure(
        cause=cause,
        message=_sendable((text.splitlines() or [type(err).__name__])[0][:_MESSAGE_CHARS]),
        detail=_sendable("".join(traceback.format_exception(err))[-_DETAIL_CHARS:]),
        peer_rank=err.rank if isinstance(err, PeerLost) else None,
    )


def fault_of(err: BaseException, rank: int) -> Fault:
    """Return what the peers of `rank`, which ends with `err`, are to know: the first fault it heard of."""
    if isinstance(err, PeerFailed):
        return err.fault
    if isinstance(err, PeerLost):
        return Fault(rank=err.rank, cause=Cause.PEER_LOST, message=err.reason)
    failure = failure_of(err)
    cause = Cause[common_pb2.FailureCause.Name(failure.cause)]
    return Fault(rank=rank, cause=cause, message=failure.message, detail=failure.detail)


def _sendable(text: str) -> str:
    """Return text that UTF-8 can hold: names of files may come with half a character."""
    return text.encode(errors="replace").decode()
