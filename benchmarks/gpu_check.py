"""Is one NVIDIA GPU as exact as a CPU? Trainings of a small GPT whose weights must be equal on every layout.

Ranks of one process exchange device tensors in memory; ranks in processes of their own share the GPU and go
through host memory, as two slots of one GPU do. Run by `gpu_check.sh`; with `--device cpu` it checks itself.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore
from torch.nn import functional

from benchmarks.ours import Rows
from benchmarks.testbed import Loopback, Place, Ranks, Runner
from examples.gpt.model import NUM_BYTES, build_model
from tests.support.driver import drive
from tests.support.fleet import plan_of
from varuna_runtime.partition import cut
from varuna_runtime.spec.job import Precision
from varuna_runtime.spec.layout import BatchShape, ScheduleKind
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.link.dist import DistLink
from varuna_runtime.worker.link.group import form_group
from varuna_runtime.worker.link.memory import MemoryNetwork
from varuna_runtime.worker.training import Training, resolve

STEPS, ROWS, CONTEXT = 3, 16, 64
BATCH = BatchShape(batch_size=ROWS, micro_batch_size=2, virtual_replicas=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One training on one layout."""

    layout: str
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B
    recompute: bool = False
    in_processes: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return it for a table."""
        parts = [self.layout, str(self.schedule), *(["recompute"] if self.recompute else [])]
        parts += [f"{key}={value}" for key, value in self.settings.items()]
        return ", ".join([*parts, "processes" if self.in_processes else "one process"])


def loss(logits: Tensor, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the sum over all bytes and their number."""
    wanted = batch[1].flatten()
    total = functional.cross_entropy(logits.flatten(0, 1).float(), wanted, reduction="sum")
    return total, torch.tensor(float(wanted.numel()), device=total.device)


def training() -> Training:
    """Return a GPT with dropout and a tied head on random bytes."""
    tokens = torch.randint(NUM_BYTES, (4 * ROWS, CONTEXT + 1), generator=torch.Generator().manual_seed(1))
    return Training(
        model=lambda: build_model(width=128, heads=4, blocks=4, context=CONTEXT, dropout=0.1),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        dataset=Rows(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()),
        batch_size=ROWS,
        steps=STEPS,
        clip_grad_norm=1.0,
    )


def engine_of(variant: Variant, link: Link, device: torch.device) -> RankEngine:
    """Return one rank's engine."""
    given = training()
    model = cut(given.model)
    plan = plan_of(
        variant.layout,
        num_segments=model.num_segments,
        batch=BATCH,
        schedule=variant.schedule,
        recompute=variant.recompute,
    )
    settings = replace(resolve(given, None), batch=BATCH, threads=1, **variant.settings)
    return RankEngine(given, settings, model, plan, link, device=device)


def world_size(layout: str) -> int:
    """Return P x D."""
    stages, replicas = (int(n) for n in layout.split("x"))
    return stages * replicas


def in_one_process(variant: Variant, device: torch.device) -> str:
    """Return the digest of the weights after STEPS steps."""
    network = MemoryNetwork(world_size(variant.layout))
    engines = [engine_of(variant, network.link(r), device) for r in range(network.world_size)]
    drive(network, engines, seed=0, num_steps=STEPS)
    digests = [engine.digest() for engine in engines]
    found: dict[int, str] = {}
    while len(found) < len(engines):
        for rank, work in enumerate(digests):
            try:
                if rank not in found:
                    next(work)
            except StopIteration as end:
                found[rank] = end.value
    return found[0]


def in_processes(variant: Variant, device_name: str) -> str:
    """The same with a process a rank; CUDA starts in them, after the fork."""

    def build(place: Place) -> Mapping[str, Runner]:
        torch.set_num_threads(1)
        device = torch.device(device_name)
        store = TCPStore(place.hosts[0], place.port, place.size, is_master=place.rank == 0)
        group = form_group(
            rank=place.rank,
            world_size=place.size,
            host=place.host,
            store=PrefixStore("check", store),
            generation=1,
            timeout_s=60.0,
            device=device,
        )
        link = DistLink(group, [rank for rank in range(place.size) if rank != place.rank])
        engine = engine_of(variant, link, device)

        def run(_: int) -> str:
            for _ in range(STEPS):
                engine.run_step()
            return engine.weights_sha256()

        return {"train": run}

    network = Loopback(world_size(variant.layout))
    with network, Ranks(network, build) as ranks:
        return str(ranks.run("train").values[0])


def groups() -> dict[str, list[Variant]]:
    """Return trainings by name; all of a name must end with the same bits."""
    found: dict[str, list[Variant]] = {}
    for precision in (Precision.FP32, Precision.BF16, Precision.FP16):
        settings = {"precision": precision}
        found[f"{precision}"] = [
            Variant(layout="2x1", in_processes=True, settings=settings),
            Variant(layout="2x2", in_processes=True, settings=settings),
            Variant(layout="1x1", settings=settings),
            Variant(layout="2x1", schedule=ScheduleKind.ZERO_BUBBLE, settings=settings),
            Variant(layout="3x1", schedule=ScheduleKind.WORK_CONSERVING, recompute=True, settings=settings),
            Variant(layout="1x2", schedule=ScheduleKind.GPIPE, settings=settings),
            Variant(layout="1x2", settings=settings | {"shard_optimizer": True}),
        ]
    offloaded = {"offload_optimizer": True}
    found["optimizer in host memory"] = [
        Variant(layout="2x1", in_processes=True, settings=offloaded),
        Variant(layout="1x1", settings=offloaded),
        Variant(layout="1x2", settings=offloaded | {"shard_optimizer": True}),
    ]
    return found


def check(device: str) -> int:
    """Run everything, print a line each and a summary; returns the number of failures."""
    digests: dict[str, set[str]] = {}
    every = [(name, variant) for name, variants in groups().items() for variant in variants]
    # Those with processes first: a process that has used CUDA cannot fork any that do.
    for name, variant in sorted(every, key=lambda pair: not pair[1].in_processes):
        began_s = time.monotonic()
        digest = _digest(variant, device)
        digests.setdefault(name, set()).add(digest)
        print(f"{name}: {variant}: {digest[:80]} in {time.monotonic() - began_s:.1f} s", flush=True)
    bad = [n for n, found in digests.items() if len(found) > 1 or any(d.startswith("failed") for d in found)]
    print(f"SUMMARY {'all bits equal' if not bad else 'NOT EQUAL: ' + ', '.join(bad)}", flush=True)
    return len(bad)


def _digest(variant: Variant, device: str) -> str:
    try:
        if variant.in_processes:
            return in_processes(variant, device)
        return in_one_process(variant, torch.device(device))
    except Exception:  # the others are still worth knowing
        traceback.print_exc()
        return f"failed: {traceback.format_exc().strip().splitlines()[-1]}"


def main(arguments: Sequence[str]) -> int:
    """Check `--device`, by default the GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    device: str = parser.parse_args(arguments).device
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {device}", flush=True)
    return 1 if check(device) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
