"""From a candidate to its times."""

from collections import Counter
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from varuna_manager.planner.pools import SlotPool
from varuna_manager.planner.sums import SumCost
from varuna_manager.planner.timing import OWN_LINK, Boundary, Pipeline, StageTiming
from varuna_manager.planner.workload import Workload, at_speed, transfer_s
from varuna_runtime.spec.batches import num_micro_batches
from varuna_runtime.spec.layout import BatchShape, Layout, ScheduleKind, Stage
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import LinkCost
from varuna_runtime.spec.reduction import owned_nodes

__all__ = [
    "OWN_LINK",
    "Boundary",
    "Pipeline",
    "StageTiming",
    "interfaces",
    "most_micro_batches",
    "pipeline",
    "shares",
]

WEIGHT_BYTES = 4  # weights stay float32 whatever the compute type is


@lru_cache(maxsize=4096)
def shares(batch: BatchShape, replicas: int) -> tuple[int, ...]:
    """Return the number of micro-batches of each replica in a full step (contract E4)."""
    num_micro = num_micro_batches(batch.batch_size, batch.micro_batch_size)
    edges = _edges(batch.virtual_replicas, replicas) * num_micro // batch.virtual_replicas
    return tuple(np.diff(edges).tolist())


def pipeline(
    work: Workload,
    model: ModelRecord,
    batch: BatchShape,
    pool: SlotPool,
    *,
    layout: Layout,
    schedule: ScheduleKind,
    stages: tuple[Stage, ...],
    speeds: tuple[float, ...] = (),
) -> Pipeline:
    """Return the timing of a candidate; where replicas differ in a link, the slower one counts for all.

    `speeds` are those of the stages' slots, relative to the profile's; empty where all have that.
    """
    sums = sums_over(work, pool, layout)
    peers, volume = sums.link, reduction_volume(batch.virtual_replicas, layout.replicas)
    return Pipeline(
        schedule=schedule,
        stages=tuple(
            _stage(
                at_speed(work, speed),
                stage,
                sums,
                volume=volume,
                replicas=layout.replicas,
                schedule=schedule,
            )
            for stage, speed in zip(stages, speeds or (1.0,) * len(stages), strict=True)
        ),
        boundaries=tuple(
            _boundary(work, stage.last, splits)
            for stage, splits in zip(stages, pool.split_stages(layout), strict=False)
        ),
        micro_batches=shares(batch, layout.replicas),
        agreement_s=agreement_s(layout, peers) + _tied_s(model, stages, peers),
        last_compute=work.last_compute,
        last_bytes=work.last_bytes,
        compute_factor=work.compute_factor,
        interfaces=interfaces(pool, layout),
    )


def most_micro_batches(batch: BatchShape, replicas: int) -> int:
    """Return the largest share of a replica."""
    num_micro, virtual = num_micro_batches(batch.batch_size, batch.micro_batch_size), batch.virtual_replicas
    if num_micro % virtual == 0:
        return -(-virtual // replicas) * (num_micro // virtual)
    return max(shares(batch, replicas))


def most_whole(batch: BatchShape, replicas: int) -> int:
    """Return the largest share of a replica without a short last micro-batch."""
    if batch.batch_size % batch.micro_batch_size == 0:
        return most_micro_batches(batch, replicas)
    *others, last = shares(batch, replicas)
    return max(*others, last - 1) if others else last - 1


@lru_cache(maxsize=1024)
def interfaces(pool: SlotPool, layout: Layout) -> tuple[tuple[int, int], ...]:
    """Return by rank the node that its activations and its gradients leave, if they leave it.

    Ranks of a node are neighbours, so these are the gradients of its first and the activations of its last.
    Empty where no node sends both.
    """
    if pool.unit_slots % layout.stages == 0:
        return ()
    numbers: dict[str, int] = {}
    nodes = [numbers.setdefault(slot.node, len(numbers)) for slot in pool.placement(layout)]
    found = []
    for rank, node in enumerate(nodes):
        stage = layout.stage_of(rank)
        down = stage + 1 < layout.stages and nodes[rank + 1] != node
        up = stage > 0 and nodes[rank - 1] != node
        found.append((node if down else OWN_LINK, node if up else OWN_LINK))
    senders = Counter(wire for wires in found for wire in wires if wire != OWN_LINK)
    return tuple(found) if max(senders.values(), default=0) > 1 else ()


def sums_over(work: Workload, pool: SlotPool, layout: Layout) -> SumCost:
    """Return what sums over the replicas of a layout cost; where some cross nodes, all count as if."""
    return work.far_sums if pool.crosses_nodes(layout) else work.near_sums


@lru_cache(maxsize=2**14)
def reduction_volume(virtual_replicas: int, replicas: int) -> float:
    """Return the bytes a rank sends per gradient byte: ordered reduce-scatter, then all-gather (contract E4).

    A replica hands over each canonical node it owns, so a D that cuts the tree unevenly sends more.
    """
    return (_most_owned_nodes(virtual_replicas, replicas) + 1) * (replicas - 1) / replicas


def _edges(virtual_replicas: int, replicas: int) -> NDArray[np.int64]:
    """Return the first virtual replica of each replica, and V; see `spec.reduction.share`."""
    return np.arange(replicas + 1, dtype=np.int64) * virtual_replicas // replicas


def _most_owned_nodes(virtual_replicas: int, replicas: int) -> int:
    """Return the most maximal canonical nodes a replica owns; see `spec.reduction.owned_nodes`.

    Canonical nodes are aligned runs of a power of two, but for those at the end: up the levels, an edge in
    the middle of a parent leaves one node behind.
    """
    edges = _edges(virtual_replicas, replicas)
    first, last = edges[:-2], edges[1:-1]
    found = np.zeros(replicas - 1, dtype=np.int64)
    while np.any(first < last):
        is_open = first < last
        found += np.where(is_open, (first & 1) + (last & 1), 0)
        first, last = (first + 1) >> 1, last >> 1
    at_the_end = owned_nodes(virtual_replicas, range(int(edges[-2]), virtual_replicas))
    return max(int(found.max(initial=0)), len(at_the_end))


def agreement_s(layout: Layout, peers: LinkCost) -> float:
    """Return the fixed cost of totals and vote: there and back."""
    return 2 * peers.latency_s if layout.world_size > 1 else 0.0


@lru_cache(maxsize=2**14)
def _stage(
    work: Workload, stage: Stage, sums: SumCost, *, volume: float, replicas: int, schedule: ScheduleKind
) -> StageTiming:
    params = float(work.param_bytes[stage.last] - work.param_bytes[stage.first])
    backward_s = work.backward_under(schedule)
    reduces = params > 0 and replicas > 1
    return StageTiming(
        forward_s=float(work.forward_s[stage.last] - work.forward_s[stage.first]),
        backward_s=float(backward_s[stage.last] - backward_s[stage.first]),
        recompute=stage.recompute,
        in_flight=stage.in_flight,
        recompute_s=float(work.recompute_s[stage.last] - work.recompute_s[stage.first]),
        input_s=float(work.input_s[stage.last] - work.input_s[stage.first]),
        reduction_s=float(sums.seconds(replicas, params * volume)) if reduces else 0.0,
        optimizer_s=params * work.optimizer_step_s_per_byte,
    )


@lru_cache(maxsize=2**12)
def _boundary(work: Workload, segment: int, splits: bool) -> Boundary:
    link = work.cross_node if splits else work.same_node
    return Boundary(
        serial_s=transfer_s(link, float(work.boundary_bytes[segment])),
        latency_s=link.latency_s,
        late_s=link.late_s,
    )


def _tied_s(model: ModelRecord, stages: tuple[Stage, ...], peers: LinkCost) -> float:
    """Return the time to bring the sums of tied parameters together across stages."""
    if not model.tied:
        return 0.0
    sizes = {t.name: prod(t.shape) * WEIGHT_BYTES for seg in model.segments for t in seg.tensors}
    total = 0.0
    for tied in model.tied:
        homes = {s for use in tied.uses for s, at in enumerate(stages) if at.first <= use.segment < at.last}
        one_s = peers.latency_s + transfer_s(peers, sizes.get(tied.uses[0].name, 0))
        total += (len(homes) - 1) * one_s
    return total
