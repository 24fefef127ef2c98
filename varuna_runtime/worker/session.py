"""A worker between its fork and its exit, on its main thread: prepare, activate, run, say why it ended."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from varuna_runtime.spec.errors import VarunaError
from varuna_runtime.wire.v1 import worker_pb2
from varuna_runtime.worker.failing import StartFailed, failure_of
from varuna_runtime.worker.mailbox import Mailbox, Preparation
from varuna_runtime.worker.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWord:
    """How a rank ended well: drained, or finished."""

    message: worker_pb2.WorkerProgress


class Rank(Protocol):
    """One rank of one generation: a training, or a measurement."""

    def prepare(self) -> worker_pb2.PrepareReply:
        """Hold plan and state, and listen if others must reach this rank."""
        ...

    def activate(self, request: worker_pb2.ActivateRequest) -> None:
        """Agree with all ranks on what is started and from which state, and join their group."""
        ...

    def run(self) -> LastWord:
        """Work to the end, or to an agreed stop."""
        ...

    def close(self) -> None:
        """Leave the group so that it is no loss to the peers; only after `run` returned."""
        ...

    def abandon(self, err: BaseException) -> None:
        """Tell the peers, if there are any, why this rank ends early, and finish a copy; in two seconds."""
        ...


class Session:
    """`make_rank` builds the rank that a Prepare asks for."""

    def __init__(
        self,
        make_rank: Callable[[worker_pb2.PrepareRequest], Rank],
        mailbox: Mailbox,
        progress: Progress,
    ) -> None:
        self._make_rank = make_rank
        self._mailbox = mailbox
        self._progress = progress

    def run(self) -> bool:
        """Return whether the rank ended well; its last word is then queued, else its failure."""
        rank: Rank | None = None
        try:
            rank = self._prepare(self._mailbox.wait_prepare())
            self._activate(rank)
            word = rank.run()
            self._progress.tell(word.message)
            rank.close()
        except (
            Exception,
            SystemExit,
            KeyboardInterrupt,
        ) as err:  # the worker's boundary: it becomes a report
            traceback.print_exc()
            self._progress.tell(worker_pb2.WorkerProgress(failed=failure_of(err)))
            if rank is not None:
                rank.abandon(err)
            return False
        return True

    def _prepare(self, preparation: Preparation) -> Rank:
        try:
            rank = self._make_rank(preparation.request)
            preparation.reply.set_result(rank.prepare())
        except BaseException as err:
            self._progress.tell(worker_pb2.WorkerProgress(failed=failure_of(err)))
            preparation.reply.set_exception(StartFailed(f"{type(err).__name__}: {err}"))
            raise
        return rank

    def _activate(self, rank: Rank) -> None:
        activation = self._mailbox.wait_activate()
        try:
            rank.activate(activation)
        except VarunaError:
            raise
        except Exception as err:  # no user code runs here: it is the group, a port or a peer
            raise StartFailed(f"the process group could not be formed: {err}") from err
        self._progress.tell(worker_pb2.WorkerProgress(ready=worker_pb2.WorkerReady()))
