from dataclasses import replace

import pytest

from varuna_runtime.spec.errors import PeerFailed, PeerLost, PlanMismatch, StepDiverged, StoreError
from varuna_runtime.spec.generation import Cause, Fault
from varuna_runtime.wire.v1 import common_pb2, worker_pb2
from varuna_runtime.worker.failing import StartFailed, failure_of, fault_of
from varuna_runtime.worker.mailbox import Mailbox
from varuna_runtime.worker.progress import Progress
from varuna_runtime.worker.session import LastWord, Session

FAULT = Fault(rank=2, cause=Cause.HANG, message="it did not answer", detail="where")


class FakeRank:
    """Raises `error` in the phase named `at`."""

    def __init__(self, at: str = "", error: BaseException | None = None) -> None:
        self._at = at
        self._error = error
        self.calls: list[str] = []

    def prepare(self) -> worker_pb2.PrepareReply:
        self._call("prepare")
        return worker_pb2.PrepareReply(plan_hash="h")

    def activate(self, request: worker_pb2.ActivateRequest) -> None:
        self._call("activate")

    def run(self) -> LastWord:
        self._call("run")
        return LastWord(message=worker_pb2.WorkerProgress(drained=common_pb2.Drained(step=3)))

    def close(self) -> None:
        self._call("close")

    def abandon(self, err: BaseException) -> None:
        self.calls.append(f"abandon: {err}")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self._at and self._error is not None:
            raise self._error


def play(rank: FakeRank) -> tuple[bool, list[worker_pb2.WorkerProgress], Mailbox]:
    mailbox, progress = Mailbox(), Progress(1)
    mailbox.prepare(worker_pb2.PrepareRequest(generation=1))
    mailbox.activate(worker_pb2.ActivateRequest(generation=1))
    is_good = Session(lambda request: rank, mailbox, progress).run()
    return is_good, [m for m in progress.stream() if m.WhichOneof("body") != "beat"], mailbox


def test_a_good_rank_is_prepared_activated_run_and_closed() -> None:
    rank = FakeRank()
    is_good, said, mailbox = play(rank)
    assert is_good
    assert rank.calls == ["prepare", "activate", "run", "close"]
    assert [m.WhichOneof("body") for m in said] == ["ready", "drained"]
    assert mailbox.prepare(worker_pb2.PrepareRequest()).result().plan_hash == "h"


def test_a_failed_preparation_answers_the_call_and_is_reported() -> None:
    is_good, said, mailbox = play(FakeRank("prepare", ValueError("boom")))
    assert not is_good
    assert said[-1].failed.cause == common_pb2.FailureCause.USER_ERROR
    with pytest.raises(StartFailed, match="boom"):
        mailbox.prepare(worker_pb2.PrepareRequest()).result()


@pytest.mark.parametrize(
    ("at", "error", "cause"),
    [
        ("activate", RuntimeError("connection refused"), common_pb2.FailureCause.START_FAILED),
        ("activate", PlanMismatch("other plan"), common_pb2.FailureCause.PLAN_MISMATCH),
        ("run", PeerLost(2, "closed"), common_pb2.FailureCause.PEER_LOST),
        ("run", PeerFailed(FAULT), common_pb2.FailureCause.HANG),
        ("run", RuntimeError("in the user's loss"), common_pb2.FailureCause.USER_ERROR),
        ("run", SystemExit(4), common_pb2.FailureCause.USER_ERROR),
    ],
)
def test_the_cause_of_an_early_end_is_named(
    at: str, error: BaseException, cause: common_pb2.FailureCause
) -> None:
    rank = FakeRank(at, error)
    is_good, said, _ = play(rank)
    assert not is_good
    assert rank.calls[-1].startswith("abandon: ")
    assert rank.calls[-1].endswith(str(error))
    assert said[-1].failed.cause == cause
    assert (said[-1].failed.peer_rank == 2) == isinstance(error, PeerLost | PeerFailed)


def test_a_peers_failure_is_reported_and_passed_on_in_its_own_words() -> None:
    failure = failure_of(PeerFailed(FAULT))
    assert (failure.message, failure.detail, failure.peer_rank) == ("it did not answer", "where", 2)
    assert fault_of(PeerFailed(FAULT), 5) == FAULT


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (ValueError("boom"), Fault(rank=5, cause=Cause.USER_ERROR, message="ValueError: boom")),
        (StepDiverged("not finite"), Fault(rank=5, cause=Cause.USER_ERROR, message="not finite")),
        (StoreError("no bucket"), Fault(rank=5, cause=Cause.START_FAILED, message="no bucket")),
        (PeerLost(3, "closed"), Fault(rank=3, cause=Cause.PEER_LOST, message="closed")),
        (
            OSError("half a character: \udc80"),
            Fault(rank=5, cause=Cause.USER_ERROR, message="OSError: half a character: ?"),
        ),
    ],
)
def test_the_fault_that_peers_hear_of_names_who_failed_first(error: Exception, fault: Fault) -> None:
    assert replace(fault_of(error, 5), detail="") == fault
