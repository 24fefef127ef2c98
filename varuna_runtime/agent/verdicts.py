"""What the supervisor says of a rank that could not speak for itself."""

from varuna_runtime.agent import events as e
from varuna_runtime.agent import records as r
from varuna_runtime.agent.lifecycle import Rank


def silent(limit_s: float) -> r.Failed:
    """Return the failure of a worker that gave no sign of life."""
    return r.Failed(cause=r.Cause.HANG, message=f"the worker gave no sign of life for {limit_s:g} s")


def late(limit_s: float) -> r.Failed:
    """Return the failure of a launcher whose script runs for ever."""
    message = f"the script did not reach train() in {limit_s:g} s"
    return r.Failed(cause=r.Cause.HANG, message=message)


def endless(in_step_s: float, limit_s: float) -> r.Failed:
    """Return the failure of a worker whose step does not end."""
    message = f"a step has been running for {in_step_s:.1f} s, more than hang_timeout_s = {limit_s:g}"
    return r.Failed(cause=r.Cause.HANG, message=message)


def frozen(stopped_s: float) -> r.Failed:
    """Return the failure of a process that somebody stopped."""
    message = f"the process has been stopped for {stopped_s:.1f} s, as by SIGSTOP"
    return r.Failed(cause=r.Cause.HANG, message=message)


def crash(rank: Rank, event: e.RankExited) -> r.Failed:
    """Return the failure of a process that ended without a last word."""
    how = f"signal {event.signal}" if event.signal is not None else f"exit code {event.exit_code}"
    if rank.doubt:
        return r.Failed(
            cause=r.Cause.START_FAILED,
            message=f"{rank.doubt}; the worker ended with {how}",
            detail=event.log_tail,
            exit_code=event.exit_code,
            signal=event.signal,
        )
    return r.Failed(
        cause=r.Cause.WORKER_CRASH,
        message=f"the worker ended with {how} and without a report",
        detail=event.log_tail,
        exit_code=event.exit_code,
        signal=event.signal,
    )
