"""Every rank of a toy training as a process of its own: `python -m tests.support.rank_main JSON`.

One process imports torch and forks the ranks, which spares each of them seconds.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from tests.support import toys
from tests.support.fleet import plan_of, settings_of
from varuna_runtime.partition import cut
from varuna_runtime.spec.errors import PeerLost
from varuna_runtime.spec.layout import BatchShape
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.link.dist import DistLink
from varuna_runtime.worker.link.group import form_group, host_store, join_store
from varuna_runtime.worker.peers import peers_of


def run_rank(folder: Path, rank: int, layout: str, num_steps: int, dies_at: int | None) -> None:
    training = toys.tied_training()
    model = cut(training.model)
    batch = BatchShape(batch_size=training.batch_size, micro_batch_size=2, virtual_replicas=4)
    plan = plan_of(layout, num_segments=model.num_segments, batch=batch)
    group = form_group(
        rank=rank,
        world_size=plan.layout.world_size,
        host="127.0.0.1",
        store=meet(folder, rank),
        generation=1,
        timeout_s=60.0,
    )
    link = DistLink(group, peers_of(plan, rank, model.tied))
    engine = RankEngine(training, settings_of(training, batch), model, plan, link)
    losses: list[str] = []
    result: dict[str, object]
    try:
        while engine.step < num_steps:
            if engine.step == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            losses.append(engine.run_step().record.loss_hex)
        result = {"losses": losses, "weights_sha256": engine.weights_sha256()}
    except PeerLost as err:
        result = {"lost": err.rank}
    link.close()
    (folder / f"result{rank}.json").write_text(json.dumps(result))


def meet(folder: Path, rank: int) -> torch.distributed.Store:
    """Rank 0 tells the port it bound through a file."""
    file = folder / "port"
    if rank == 0:
        store = host_store("127.0.0.1")
        (folder / "port.new").write_text(str(store.port))
        (folder / "port.new").rename(file)
        return store
    while not file.exists():
        time.sleep(0.02)
    return join_store("127.0.0.1", int(file.read_text()), timeout_s=60.0)


def fork_ranks(folder: Path, layout: str, num_steps: int, dies_at: dict[str, int]) -> None:
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # imports what a first optimizer imports
    num_stages, replicas = (int(n) for n in layout.split("x"))
    children = []
    for rank in range(num_stages * replicas):
        if child := os.fork():
            children.append(child)
            continue
        try:
            run_rank(folder, rank, layout, num_steps, dies_at.get(str(rank)))
        finally:
            sys.stderr.flush()
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    arguments = json.loads(sys.argv[1])
    fork_ranks(Path(arguments.pop("folder")), **arguments)
