"""A worker's life after the fork: its own log, its own service, one session, then the exit."""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from varuna_runtime.wire import launch
from varuna_runtime.wire.v1 import worker_pb2

if TYPE_CHECKING:
    from varuna_runtime.partition import PartitionedModel
    from varuna_runtime.worker.training import Training

_LAST_WORD_S = 10.0


def run(request: launch.ForkRank, training: "Training", partitioned: "PartitionedModel") -> NoReturn:
    """Serve one rank of one generation to its end; never returns into the script."""
    status = 1
    try:
        _become(request)
        status = _serve(request, training, partitioned)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def shards_folder() -> Path | None:
    """Return where the agent keeps shards near, by VARUNA_SHARDS; None without an agent."""
    folder = os.environ.get("VARUNA_SHARDS")
    return Path(folder) if folder else None


def _become(request: launch.ForkRank) -> None:
    """Leave the launcher's output and signal handlers behind; raise the thread count."""
    import torch

    log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.environ["VARUNA_RANK"] = str(request.rank)
    os.environ["VARUNA_GENERATION"] = str(request.generation)
    torch.set_num_threads(request.threads)


def _serve(request: launch.ForkRank, training: "Training", partitioned: "PartitionedModel") -> int:
    from varuna_runtime.worker.mailbox import Mailbox
    from varuna_runtime.worker.progress import Progress
    from varuna_runtime.worker.ranks import rank_for
    from varuna_runtime.worker.service import WorkerService, serve
    from varuna_runtime.worker.session import Rank, Session

    mailbox, progress = Mailbox(), Progress(request.generation)
    server = serve(request.socket, WorkerService(request.generation, mailbox, progress))

    def make_rank(prepare: worker_pb2.PrepareRequest) -> Rank:
        return rank_for(prepare, training, partitioned, mailbox, progress)

    is_good = Session(make_rank, mailbox, progress).run()
    progress.wait_delivered(_LAST_WORD_S)
    server.stop(grace=1.0).wait()
    return 0 if is_good else 1
