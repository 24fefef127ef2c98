"""The subject under torchrun: DDP over gloo, and DCP every ten steps with a pointer file."""

import os
import time
from pathlib import Path

import subject
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.nn.parallel import DistributedDataParallel

INTERVAL_STEPS = 10


def main() -> None:
    """Train until we are ended."""
    torch.set_num_threads(1)
    life = time.monotonic_ns()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(subject.SEED)
    model = subject.build_model()
    optimizer = subject.optimizer_of(model.parameters())
    folder = Path(os.environ["CHECKPOINTS"])
    step = _load(folder, model, optimizer)
    parallel, data = DistributedDataParallel(model), subject.Text()
    share = subject.BATCH // world
    while True:
        first = step * subject.BATCH + rank * share
        rows = [data[i % len(data)] for i in range(first, first + share)]
        inputs, targets = (torch.stack(column) for column in zip(*rows, strict=True))
        optimizer.zero_grad()
        loss = subject.loss_of(parallel(inputs), targets)
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0:
            subject.stamp(step, life, float(loss), world)
        if step % INTERVAL_STEPS == 0:
            _save(folder, step, model, optimizer)


def _load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    newest = folder / "newest"
    if not newest.exists():
        return 0
    step = int(newest.read_text())
    state = {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}
    state_dict_loader.load(state, checkpoint_id=folder / str(step))
    model.load_state_dict(state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])
    return step


def _save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}
    state_dict_saver.save(state, checkpoint_id=folder / str(step))
    if dist.get_rank() == 0:
        (folder / "next").write_text(str(step))
        (folder / "next").replace(folder / "newest")


if __name__ == "__main__":
    main()
