"""The Worker service on a Unix socket: checks the generation, passes on, decides nothing."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

from varuna_runtime.wire.v1 import worker_pb2, worker_pb2_grpc
from varuna_runtime.worker.mailbox import Mailbox
from varuna_runtime.worker.progress import Progress
from varuna_runtime.worker.signals import Drain

_NUM_THREADS = 6
_MAX_MESSAGE_BYTES = 64 << 20  # a plan, a job and a model as JSON


class WorkerService(worker_pb2_grpc.WorkerServicer):
    """One rank of one generation; calls of another generation are refused."""

    def __init__(self, generation: int, mailbox: Mailbox, progress: Progress) -> None:
        self._generation = generation
        self._mailbox = mailbox
        self._progress = progress

    def Prepare(  # noqa: N802
        self, request: worker_pb2.PrepareRequest, context: grpc.ServicerContext
    ) -> worker_pb2.PrepareReply:
        """Return once plan and state are held."""
        self._check(request.generation, context)
        try:
            return self._mailbox.prepare(request).result()
        except Exception as err:  # the reason travels as the worker's Failure; here it only ends the call
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(err)[:500])

    def Activate(  # noqa: N802
        self, request: worker_pb2.ActivateRequest, context: grpc.ServicerContext
    ) -> worker_pb2.ActivateReply:
        """Return at once; Ready is told when the group exists."""
        self._check(request.generation, context)
        self._mailbox.activate(request)
        return worker_pb2.ActivateReply()

    def Drain(  # noqa: N802
        self, request: worker_pb2.DrainRequest, context: grpc.ServicerContext
    ) -> worker_pb2.DrainReply:
        """Return at once; Drained is told when the agreed step is durable, or kept if that is enough."""
        self._check(request.generation, context)
        self._mailbox.drain(Drain.DURABLE if request.persist else Drain.KEPT)
        return worker_pb2.DrainReply()

    def Abort(  # noqa: N802
        self, request: worker_pb2.AbortRequest, context: grpc.ServicerContext
    ) -> worker_pb2.AbortReply:
        """End the process without a word, a copy that is being made finished first; no reply arrives."""
        self._check(request.generation, context)
        self._mailbox.abort()
        raise AssertionError("it does not come back")

    def Progress(  # noqa: N802
        self, request: worker_pb2.ProgressRequest, context: grpc.ServicerContext
    ) -> Iterator[worker_pb2.WorkerProgress]:
        """Stream reports and beats until the last word."""
        self._check(request.generation, context)
        yield from self._progress.stream()

    def _check(self, generation: int, context: grpc.ServicerContext) -> None:
        if generation != self._generation:
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"this worker is of generation {self._generation}, not {generation}",
            )


def serve(socket_path: str, service: WorkerService) -> grpc.Server:
    """Start serving on a Unix socket; only this user can reach its folder."""
    server = grpc.server(
        ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="worker-rpc"),
        options=(("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),),
    )
    worker_pb2_grpc.add_WorkerServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{socket_path}")
    server.start()
    return server
