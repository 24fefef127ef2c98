"""Commands from the gRPC threads to the worker's main thread, which alone touches torch."""

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from varuna_runtime.wire.v1 import worker_pb2
from varuna_runtime.worker.signals import Drain

Reply = Future[worker_pb2.PrepareReply]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """A Prepare call and where its answer goes."""

    request: worker_pb2.PrepareRequest
    reply: Reply


class Mailbox:
    """Each command counts once; a repeated one gets the first one's answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._preparation: Preparation | None = None
        self._preparations: queue.SimpleQueue[Preparation] = queue.SimpleQueue()
        self._activation: worker_pb2.ActivateRequest | None = None
        self._activations: queue.SimpleQueue[worker_pb2.ActivateRequest] = queue.SimpleQueue()
        self._drain = Drain.NONE
        self.before_exit: Callable[[], object] = lambda: None  # set by the main thread; short

    # --- gRPC threads ----------------------------------------------------------------------------------

    def prepare(self, request: worker_pb2.PrepareRequest) -> Reply:
        """Hand over the plan; the future holds the reply or the reason against it."""
        with self._lock:
            if self._preparation is None:
                self._preparation = Preparation(request=request, reply=Future())
                self._preparations.put(self._preparation)
            return self._preparation.reply

    def activate(self, request: worker_pb2.ActivateRequest) -> None:
        """Hand over the endpoints."""
        with self._lock:
            if self._activation is None:
                self._activation = request
                self._activations.put(request)

    def drain(self, wish: Drain) -> None:
        """Ask for a stop at a step all ranks agree on."""
        with self._lock:
            self._drain = max(self._drain, wish)

    def abort(self) -> None:
        """End this process once a copy that is being made is complete, whatever the main thread does."""
        self.before_exit()
        os._exit(0)

    # --- main thread -----------------------------------------------------------------------------------

    def wait_prepare(self) -> Preparation:
        """Block until the plan is here."""
        return self._preparations.get()

    def wait_activate(self) -> worker_pb2.ActivateRequest:
        """Block until the endpoints are here."""
        return self._activations.get()

    @property
    def drain_wish(self) -> Drain:
        """What kind of drain was asked for so far."""
        return self._drain
