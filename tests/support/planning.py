"""Builders of planner requests: models, profiles and nodes given in a few numbers."""

from collections.abc import Sequence

from varuna_manager.planner import Explanation, PlannableNode, PlanRequest, plan
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.layout import BatchShape, Infeasible, Plan
from varuna_runtime.spec.model import ModelRecord, SegmentRecord, TensorRecord, TiedParameter
from varuna_runtime.spec.profile import LinkCost, Profile, SegmentCost, SegmentProfile

KIND = "cpu:avx2"
GIB = 2**30
FREE_LINK = LinkCost(latency_s=0.0, bandwidth_bps=1e30)
FAST_LINK = LinkCost(latency_s=1e-4, bandwidth_bps=1e10)


def segment(
    *,
    forward_s: float = 0.01,
    backward_s: float = 0.02,
    output_bytes: int = 2**20,
    saved_bytes: int = 2**22,
    param_bytes: int = 2**22,
) -> SegmentCost:
    return SegmentCost(
        forward_s=forward_s,
        backward_s=backward_s,
        output_bytes=output_bytes,
        saved_bytes=saved_bytes,
        param_bytes=param_bytes,
        optimizer_bytes=2 * param_bytes,
    )


def profile(
    segments: Sequence[SegmentCost],
    *,
    sizes: Sequence[int] = (2,),
    link: LinkCost = FAST_LINK,
    same_node: LinkCost | None = None,
    optimizer_step_s_per_byte: float = 1e-10,
) -> Profile:
    return Profile(
        model_hash="hash",
        device_kind=KIND,
        by_micro_batch=tuple(
            SegmentProfile(micro_batch_size=size, segments=tuple(segments)) for size in sizes
        ),
        same_node=same_node or link,
        cross_node=link,
        optimizer_step_s_per_byte=optimizer_step_s_per_byte,
        measured_on="a test",
    )


def model(segments: Sequence[SegmentCost], tied: tuple[TiedParameter, ...] = ()) -> ModelRecord:
    return ModelRecord(
        segments=tuple(
            SegmentRecord(
                index=index,
                name=f"segment{index}",
                tensors=(TensorRecord(name=f"w{index}", shape=(cost.param_bytes // 4,), dtype="float32"),),
                param_bytes=cost.param_bytes,
            )
            for index, cost in enumerate(segments)
        ),
        tied=tied,
        num_samples=1000,
        num_steps=10,
    )


def nodes(count: int, *, slots: int = 1, memory_bytes: int = 16 * GIB) -> tuple[PlannableNode, ...]:
    return tuple(
        PlannableNode(node=f"n{i:03d}", slots=slots, memory_bytes=memory_bytes, device_kind=KIND)
        for i in range(count)
    )


def job(**fields: object) -> JobSpec:
    given = {"name": "job", "entrypoint": "train.py", "batch_size": 64, "micro_batch_size": 2}
    return JobSpec.model_validate({**given, **fields}, strict=False)


def request(
    spec: JobSpec,
    costs: Sequence[SegmentCost],
    usable: Sequence[PlannableNode],
    *,
    measured: Profile | None = None,
    batch: BatchShape | None = None,
    tied: tuple[TiedParameter, ...] = (),
) -> PlanRequest:
    return PlanRequest(
        spec=spec,
        model=model(costs, tied),
        profile=measured or profile(costs),
        nodes=tuple(usable),
        batch=batch,
    )


def planned(asked: PlanRequest) -> tuple[Plan, Explanation]:
    answer = plan(asked)
    assert isinstance(answer.outcome, Plan), answer.outcome
    assert answer.explanation is not None
    return answer.outcome, answer.explanation


def refused(asked: PlanRequest) -> Infeasible:
    answer = plan(asked)
    assert isinstance(answer.outcome, Infeasible)
    assert answer.explanation is None
    assert answer.outcome.reason
    return answer.outcome


UNEVEN = [segment(forward_s=0.01 * (1 + i % 3), backward_s=0.02 * (1 + i % 4)) for i in range(6)]
