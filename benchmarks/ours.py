"""Our side: real engines of real plans over the real link, as a worker builds them, without a manager."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.distributed_c10d import Store

from benchmarks.testbed import Place
from varuna_runtime.partition import cut
from varuna_runtime.spec.batches import default_virtual_replicas
from varuna_runtime.spec.job import Exactness, ReduceDtype
from varuna_runtime.spec.layout import BatchShape, Layout, Plan, ScheduleKind, Slot, Stage
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.link.handshake import Identity
from varuna_runtime.worker.link.sockets import listen
from varuna_runtime.worker.link.tcp import TcpLink
from varuna_runtime.worker.training import Training, resolve


class Rows:
    """A data set of given rows."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index], self.targets[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How we train: what a plan and a job file say."""

    schedule: ScheduleKind
    exactness: Exactness = Exactness.BITWISE
    recompute: bool = False
    in_flight: int = 0  # 0: what the program has by nature
    replicas: int = 1
    reduce_dtype: ReduceDtype = ReduceDtype.FP32


def link_of(place: Place, store: Store) -> Link:
    """Connect this rank to all others, as ranks on CPUs do."""
    peers = [rank for rank in range(place.size) if rank != place.rank]
    me = Identity(job="benchmark", generation=1, rank=place.rank, secret="none")
    listener = listen(place.host)
    store.set(f"port {place.rank}", str(listener.getsockname()[1]))
    addresses = {peer: (place.hosts[peer], int(store.get(f"port {peer}"))) for peer in peers}
    return TcpLink.join(me, listener, addresses, peers)


def engine_of(
    link: Link,
    way: Way,
    *,
    world_size: int,
    modules: Callable[[], nn.Module | Sequence[nn.Module]],
    loss: Callable[[Any, Any], Any],
    inputs: Tensor,
    targets: Tensor,
    num_micro: int,
    optimizer: Callable[[Any], Any] | None = None,
) -> RankEngine:
    """Return the engine of one rank; the segments of `modules` are dealt evenly to the stages."""
    training = training_of(modules=modules, loss=loss, inputs=inputs, targets=targets, optimizer=optimizer)
    model = cut(training.model)
    plan = plan_of(
        way,
        world_size=world_size,
        num_segments=model.num_segments,
        num_rows=len(inputs),
        num_micro=num_micro,
    )
    settings = replace(
        resolve(training, None),
        batch=plan.batch,
        exactness=way.exactness,
        threads=1,
        reduce_dtype=way.reduce_dtype,
    )
    return RankEngine(training, settings, model, plan, link)


def plan_of(way: Way, *, world_size: int, num_segments: int, num_rows: int, num_micro: int) -> Plan:
    """Return the plan of a way to train, each rank on a node of its own."""
    stages = world_size // way.replicas
    return Plan(
        layout=Layout(stages=stages, replicas=way.replicas),
        stages=stages_of(stages, num_segments, way),
        schedule=way.schedule,
        batch=batch_of(num_rows, num_micro, world_size),
        placement=tuple(Slot(node=f"n{rank}", index=0) for rank in range(world_size)),
        predicted_step_s=1.0,
    )


def training_of(
    *,
    modules: Callable[[], nn.Module | Sequence[nn.Module]],
    loss: Callable[[Any, Any], Any],
    inputs: Tensor,
    targets: Tensor,
    optimizer: Callable[[Any], Any] | None = None,
) -> Training:
    """Return what a script would give; all rows are one step."""
    return Training(
        model=modules,
        loss=loss,
        optimizer=optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.01)),
        dataset=Rows(inputs, targets),
        batch_size=len(inputs),
        steps=1_000_000,
        shuffle=False,
    )


def batch_of(num_rows: int, num_micro: int, world_size: int) -> BatchShape:
    """Return `num_rows` in micro-batches of num_rows // num_micro, and one of what is left."""
    micro_size = num_rows // num_micro
    return BatchShape(
        batch_size=num_rows,
        micro_batch_size=micro_size,
        virtual_replicas=default_virtual_replicas(num_rows, micro_size, world_size),
    )


def stages_of(num_stages: int, num_segments: int, way: Way) -> tuple[Stage, ...]:
    """Return equal runs of segments."""
    return tuple(_stage(s, num_stages, num_segments, way) for s in range(num_stages))


def _stage(index: int, count: int, num_segments: int, way: Way) -> Stage:
    return Stage(
        first=index * num_segments // count,
        last=(index + 1) * num_segments // count,
        recompute=way.recompute and index < count - 1,
        in_flight=way.in_flight,
    )
