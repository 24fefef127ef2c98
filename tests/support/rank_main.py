"""Every rank of a toy training as a process of its own: `python -m tests.support.rank_main JSON`.

One process imports torch and forks the ranks, which spares each of them seconds.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.support import toys
from tests.support.fleet import plan_of, settings_of
from varuna_runtime.partition import cut
from varuna_runtime.spec.errors import PeerFailed, PeerLost
from varuna_runtime.spec.layout import BatchShape, Plan
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.failing import failure_of, fault_of
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.link.dist import DistLink
from varuna_runtime.worker.link.group import form_group, host_store, join_store
from varuna_runtime.worker.link.handshake import Identity
from varuna_runtime.worker.link.sockets import listen
from varuna_runtime.worker.link.tcp import TcpLink
from varuna_runtime.worker.peers import peers_of

HOST = "127.0.0.1"


def run_rank(
    folder: Path,
    rank: int,
    layout: str,
    num_steps: int,
    link: str,
    dies_at: int | None,
    raises_at: int | None,
) -> None:
    training = toys.tied_training()
    model = cut(training.model)
    batch = BatchShape(batch_size=training.batch_size, micro_batch_size=2, virtual_replicas=4)
    plan = plan_of(layout, num_segments=model.num_segments, batch=batch)
    open_link = over_gloo if link == "gloo" else over_tcp
    opened = open_link(folder, rank, plan, peers_of(plan, rank, model.tied))

    def loss(output: Any, batch: Any) -> Any:
        if engine.step == raises_at:
            raise ValueError(f"boom in rank {rank}")
        return toys.token_loss(output, batch)

    training = replace(training, loss=loss)
    engine = RankEngine(training, settings_of(training, batch), model, plan, opened)
    result: dict[str, object]
    try:
        losses: list[str] = []
        while engine.step < num_steps:
            if engine.step == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            losses.append(engine.run_step().record.loss_hex)
        result = {"losses": losses, "weights_sha256": engine.weights_sha256()}
    except (ValueError, PeerFailed, PeerLost) as err:
        opened.abort(fault_of(err, rank))
        failure = failure_of(err)
        peer = failure.peer_rank if failure.HasField("peer_rank") else None
        result = {"error": type(err).__name__, "message": failure.message, "peer": peer}
    opened.close()
    (folder / f"result{rank}.json").write_text(json.dumps(result))


def over_tcp(folder: Path, rank: int, plan: Plan, peers: Collection[int]) -> Link:
    listener = listen(HOST)
    tell(folder, f"port{rank}", listener.getsockname()[1])
    addresses = {peer: (HOST, told(folder, f"port{peer}")) for peer in peers if peer > rank}
    me = Identity(job="toy", generation=1, rank=rank, secret="a secret")
    return TcpLink.join(me, listener, addresses, peers)


def over_gloo(folder: Path, rank: int, plan: Plan, peers: Collection[int]) -> Link:
    if rank == 0:
        store = host_store(HOST)
        tell(folder, "store", store.port)
    else:
        store = join_store(HOST, told(folder, "store"), timeout_s=60.0)
    group = form_group(
        rank=rank, world_size=plan.layout.world_size, host=HOST, store=store, generation=1, timeout_s=60.0
    )
    return DistLink(group, peers)


def tell(folder: Path, name: str, number: int) -> None:
    (folder / f"{name}.new").write_text(str(number))
    (folder / f"{name}.new").rename(folder / name)


def told(folder: Path, name: str) -> int:
    while not (folder / name).exists():
        time.sleep(0.02)
    return int((folder / name).read_text())


def fork_ranks(
    folder: Path,
    layout: str,
    num_steps: int,
    link: str,
    dies_at: dict[str, int],
    raises_at: dict[str, int],
) -> None:
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # imports what a first optimizer imports
    num_stages, replicas = (int(n) for n in layout.split("x"))
    children = []
    for rank in range(num_stages * replicas):
        if child := os.fork():
            children.append(child)
            continue
        try:
            run_rank(folder, rank, layout, num_steps, link, dies_at.get(str(rank)), raises_at.get(str(rank)))
        finally:
            sys.stderr.flush()
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    arguments = json.loads(sys.argv[1])
    fork_ranks(Path(arguments.pop("folder")), **arguments)
