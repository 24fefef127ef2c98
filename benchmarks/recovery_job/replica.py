"""The subject under torchft: one process a replica group, which heals from its peers and saves nothing."""

import os
from datetime import timedelta

import subject
import torch
from torch._C._distributed_c10d import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo


def main() -> None:
    """Train until we are ended."""
    torch.set_num_threads(1)
    replica, num_replicas = int(os.environ["REPLICA"]), int(os.environ["REPLICAS"])
    torch.manual_seed(subject.SEED)
    model = subject.build_model()
    inner = subject.optimizer_of(model.parameters())

    def load(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=30)),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        replica_id=f"replica_{replica}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=30),
        hostname="127.0.0.1",
    )
    parallel, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    data, share = subject.Text(), subject.BATCH // num_replicas
    while True:
        first = manager.current_step() * subject.BATCH + replica * share
        rows = [data[i % len(data)] for i in range(first, first + share)]
        inputs, targets = (torch.stack(column) for column in zip(*rows, strict=True))
        optimizer.zero_grad()
        loss = subject.loss_of(parallel(inputs), targets)
        loss.backward()
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:
            subject.stamp(manager.current_step(), manager._quorum_id, float(loss), manager.num_participants())


if __name__ == "__main__":
    main()
