"""Small records for tests of the core: a model, its profile, job specs and data-parallel plans."""

from collections.abc import Sequence
from typing import Any

from varuna_runtime.spec.job import JobSpec, Nodes, Retries
from varuna_runtime.spec.layout import BatchShape, Infeasible, Layout, Plan, ScheduleKind, Slot, Stage
from varuna_runtime.spec.model import ModelRecord, SegmentRecord, TensorRecord
from varuna_runtime.spec.profile import LinkCost, Profile, SegmentCost, SegmentProfile

MODEL = ModelRecord(
    segments=tuple(
        SegmentRecord(
            index=i,
            name=f"layer{i}",
            tensors=(TensorRecord(name=f"layer{i}.weight", shape=(4, 4), dtype="float32"),),
            param_bytes=64,
        )
        for i in range(2)
    ),
    tied=(),
    num_samples=640,
    num_steps=20,
)

_LINK = LinkCost(latency_s=1e-4, bandwidth_bps=1e9)
_COST = SegmentCost(
    forward_s=0.01, backward_s=0.02, output_bytes=64, saved_bytes=128, param_bytes=64, optimizer_bytes=128
)

PROFILE = Profile(
    model_hash=MODEL.hash(),
    device_kind="",
    by_micro_batch=(SegmentProfile(micro_batch_size=8, segments=(_COST, _COST)),),
    same_node=_LINK,
    cross_node=_LINK,
    optimizer_step_s_per_byte=1e-9,
    measured_on="vm-a",
)

BATCH = BatchShape(batch_size=32, micro_batch_size=4, virtual_replicas=8)


def job_spec(name: str, **fields: Any) -> JobSpec:
    """Return a small job; `min`, `max` and the retries are given flat."""
    nodes = Nodes(min=fields.pop("min", 1), max=fields.pop("max", 16))
    causes = {cause: fields.pop(cause) for cause in ("user_error", "worker_crash", "hang") if cause in fields}
    return JobSpec(
        name=name,
        entrypoint="train.py",
        batch_size=32,
        nodes=nodes,
        retries=Retries(**causes),
        **fields,
    )


def pipeline_for(nodes: Sequence[tuple[str, int]], batch: BatchShape | None = None) -> Plan | Infeasible:
    """Return a plan of two stages on one slot of each node, an even number of them; else as `plan_for`."""
    used = sorted(nodes)[: len(nodes) // 2 * 2]
    if not used:
        return plan_for(nodes, batch)
    return Plan(
        layout=Layout(stages=2, replicas=len(used) // 2),
        stages=(Stage(first=0, last=1, recompute=False), Stage(first=1, last=2, recompute=False)),
        schedule=ScheduleKind.ONE_F_ONE_B,
        batch=batch or BATCH,
        placement=tuple(Slot(node=node, index=0) for node, _ in used),
        predicted_step_s=8.0 / len(used),
    )


def plan_for(nodes: Sequence[tuple[str, int]], batch: BatchShape | None = None) -> Plan | Infeasible:
    """Return a data-parallel plan on one slot of each node, at most V of them; a step takes 8 s / D."""
    batch = batch or BATCH
    used = sorted(nodes)[: batch.virtual_replicas]
    if not used:
        return Infeasible(reason="no nodes")
    return Plan(
        layout=Layout(stages=1, replicas=len(used)),
        stages=(Stage(first=0, last=len(MODEL.segments), recompute=False),),
        schedule=ScheduleKind.ONE_F_ONE_B,
        batch=batch,
        placement=tuple(Slot(node=node, index=0) for node, _ in used),
        predicted_step_s=8.0 / len(used),
    )
