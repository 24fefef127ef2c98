"""Every rank of drawn combinations as a process of its own, over the link that jobs use.

`python -m tests.support.combination_main FOLDER SEED...`: one process imports torch and cuts the models, then
forks the ranks of one combination after the other. FOLDER/SEED.RANK holds what a rank ended with.
"""

import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from socket import socket

import torch

from tests.support.combinations import NUM_STEPS, TOYS, Examples
from tests.support.fleet import settings_of
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.link.handshake import Identity
from varuna_runtime.worker.link.sockets import listen
from varuna_runtime.worker.link.tcp import TcpLink
from varuna_runtime.worker.peers import peers_of

EXAMPLES = Examples(TOYS)


def run_rank(file: Path, seed: int, rank: int, listeners: Mapping[int, socket]) -> None:
    drawn = EXAMPLES.drawn(seed)
    training, plan = EXAMPLES.training(drawn.model, drawn.batch.batch_size), EXAMPLES.plan(drawn)
    model = EXAMPLES.model(drawn.model)
    link = link_of(rank, listeners, peers_of(plan, rank, model.tied))
    settings = settings_of(training, drawn.batch, precision=drawn.precision, shard_optimizer=drawn.shards)
    engine = RankEngine(training, settings, model, plan, link)
    losses = [engine.run_step().loss for _ in range(NUM_STEPS)]
    state = engine.state()
    link.close()
    tensors = {name: t for of_segment in state.segments.values() for name, t in of_segment.items()}
    torch.save({"losses": losses, "tensors": tensors}, file)


def link_of(rank: int, listeners: Mapping[int, socket], peers: tuple[int, ...]) -> Link:
    """Connect a rank with its peers; every rank's port was bound before there were processes."""
    addresses = {other: listener.getsockname()[:2] for other, listener in listeners.items()}
    for other, listener in listeners.items():
        if other != rank:
            listener.close()
    me = Identity(job="drawn", generation=1, rank=rank, secret="of the drawn ones")
    return TcpLink.join(me, listeners[rank], addresses, peers)


def fork_ranks(folder: Path, seed: int) -> None:
    """Run a combination to its end; a rank that failed leaves its traceback in place of its results."""
    world_size = EXAMPLES.plan(EXAMPLES.drawn(seed)).layout.world_size
    listeners = {rank: listen("127.0.0.1") for rank in range(world_size)}
    children = []
    for rank in range(world_size):
        if child := os.fork():
            children.append(child)
            continue
        try:
            run_rank(folder / f"{seed}.{rank}", seed, rank, listeners)
        except BaseException:
            (folder / f"{seed}.{rank}.failed").write_text(traceback.format_exc())
        finally:
            os._exit(0)
    for listener in listeners.values():
        listener.close()
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # imports what a first optimizer imports
    for word in sys.argv[2:]:
        fork_ranks(Path(sys.argv[1]), int(word))
