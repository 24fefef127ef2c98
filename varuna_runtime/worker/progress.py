"""What a worker has to say, kept until its agent has taken it; beats in between. Safe from any thread."""

import threading
from collections import deque
from collections.abc import Iterator

from varuna_runtime.wire.v1 import common_pb2, worker_pb2
from varuna_runtime.worker import clock
from varuna_runtime.worker.link.pulse import Silence

_BEAT_S = 0.3
_LAST_WORDS = ("drained", "finished", "failed")


class Progress:
    """A queue of reports, read by one stream at a time; the newest stream wins."""

    def __init__(self, generation: int) -> None:
        self._generation = generation
        self._changed = threading.Condition()
        self._reports: deque[worker_pb2.WorkerProgress] = deque()
        self._reader = 0
        self._step = 0
        self._step_since_s: float | None = None
        self._is_ended = False
        self._is_delivered = False

    def tell(self, message: worker_pb2.WorkerProgress) -> None:
        """Queue a report; nothing is taken after drained, finished or failed."""
        message.generation = self._generation
        with self._changed:
            if self._is_ended:
                return
            self._reports.append(message)
            self._is_ended = message.WhichOneof("body") in _LAST_WORDS
            self._changed.notify_all()

    def step_begins(self, step: int) -> None:
        """From now on beats tell how long the step after `step` committed ones has been running."""
        with self._changed:
            self._step, self._step_since_s = step, clock.now_s()

    def step_ends(self) -> None:
        """Between this and the next beginning no step is running."""
        with self._changed:
            self._step_since_s = None

    def peer_silent(self, silence: Silence) -> None:
        """Queue that a peer fell silent, or is heard again."""
        told = common_pb2.PeerSilent(rank=silence.rank, silent_s=silence.silent_s)
        self.tell(worker_pb2.WorkerProgress(peer_silent=told))

    def stream(self) -> Iterator[worker_pb2.WorkerProgress]:
        """Yield reports and beats until the last word was taken, or a newer stream took over."""
        with self._changed:
            self._reader += 1
            reader = self._reader
        while True:
            message = self._next(reader)
            if message is None:
                return
            yield message
            if message.WhichOneof("body") in _LAST_WORDS:
                self._deliver()
                return

    def wait_delivered(self, timeout_s: float) -> bool:
        """Return whether the last word was taken in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_delivered, timeout_s)

    def _deliver(self) -> None:
        with self._changed:
            self._is_delivered = True
            self._changed.notify_all()

    def _next(self, reader: int) -> worker_pb2.WorkerProgress | None:
        with self._changed:
            self._changed.wait_for(lambda: self._reports or self._reader != reader, _BEAT_S)
            if self._reader != reader:
                return None
            if self._reports:
                return self._reports.popleft()
            since_s = self._step_since_s
            in_step_s = 0.0 if since_s is None else clock.now_s() - since_s
            beat = worker_pb2.WorkerBeat(step=self._step, in_step_s=in_step_s)
            return worker_pb2.WorkerProgress(generation=self._generation, beat=beat)
