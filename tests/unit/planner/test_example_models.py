"""Every number of nodes gets a plan or parks: the example models, as `varuna profile` measured them."""

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.planning import GIB
from tests.support.planning_checks import check_invariants
from varuna_manager.cli.job_on_disk import JobOnDisk, read_job
from varuna_manager.cli.profile_file import read_profile
from varuna_manager.planner import PlannableNode, PlanOutcome, PlanRequest, plan
from varuna_manager.planner.candidates import shapes
from varuna_manager.planner.pools import pools
from varuna_manager.planner.search import least_memory_bytes
from varuna_runtime.spec.job import JobSpec, LayoutChoice, Nodes
from varuna_runtime.spec.layout import BatchShape, Plan
from varuna_runtime.spec.profile import ProfiledModel

ROOT = Path(__file__).parents[3]
MODELS = ("hf_gpt2", "bert", "vision")
MIN_NODES, MOST_NODES = 2, 40


def spec_of(name: str) -> JobSpec:
    """The example's own job, with any layout and pool size."""
    read = read_job(ROOT / "examples" / name / "job.yaml")
    assert isinstance(read, JobOnDisk), read
    wide = Nodes(min=MIN_NODES, max=MOST_NODES)
    return read.spec.model_copy(update={"layout": LayoutChoice(), "nodes": wide})


@cache
def profiled(name: str) -> ProfiledModel:
    return read_profile(ROOT / "tests" / "data" / "profiles" / f"{name}.json")


def request_for(name: str, count: int, batch: BatchShape | None, memory_bytes: int) -> PlanRequest:
    found = profiled(name)
    return PlanRequest(
        spec=spec_of(name),
        model=found.model,
        profile=found.profile,
        nodes=tuple(
            PlannableNode(
                node=f"n{i:02d}", slots=1, memory_bytes=memory_bytes, device_kind=found.profile.device_kind
            )
            for i in range(count)
        ),
        batch=batch,
    )


@cache
def plans(name: str, memory_bytes: int) -> tuple[tuple[PlanRequest, PlanOutcome], ...]:
    """Questions and answers for 0 to MOST_NODES nodes, as one job meets them: its batch shape is recorded."""
    first = plan(request_for(name, MOST_NODES, None, memory_bytes)).outcome
    batch = first.batch if isinstance(first, Plan) else None
    asked = (request_for(name, count, batch, memory_bytes) for count in range(MOST_NODES + 1))
    return tuple((one, plan(one)) for one in asked)


@cache
def tight_bytes(name: str) -> int:
    """Slot memory that is too little for the fewest nodes and enough for the most."""
    asked = [request_for(name, count, None, 16 * GIB) for count in (MIN_NODES, MOST_NODES)]
    needs = [least_memory_bytes(one, shapes(one), pools(one.nodes, MOST_NODES))[0] for one in asked]
    return int(sum(needs) / 2)


@pytest.mark.parametrize("name", MODELS)
def test_every_number_of_nodes_gets_a_plan_or_parks(name: str) -> None:
    for count, (asked, answer) in enumerate(plans(name, 16 * GIB)):
        if count < MIN_NODES:
            assert not isinstance(answer.outcome, Plan)
            assert answer.outcome.change.startswith(f"add {MIN_NODES - count} node")
        else:
            assert isinstance(answer.outcome, Plan), answer.outcome
            check_invariants(asked, answer.outcome)


@pytest.mark.parametrize("name", MODELS)
def test_a_pool_of_small_slots_gets_a_plan_from_some_number_of_nodes_on_and_parks_below(name: str) -> None:
    answers = plans(name, tight_bytes(name))
    has_plan = [isinstance(answer.outcome, Plan) for _, answer in answers]
    assert has_plan == sorted(has_plan)
    assert set(has_plan[MIN_NODES:]) == {False, True}
    for asked, answer in answers:
        if isinstance(answer.outcome, Plan):
            check_invariants(asked, answer.outcome)
        else:
            assert answer.outcome.reason
            assert answer.outcome.change


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("is_roomy", [True, False])
def test_one_more_node_never_makes_the_plan_slower(name: str, is_roomy: bool) -> None:
    answers = plans(name, 16 * GIB if is_roomy else tight_bytes(name))
    steps_s = [a.outcome.predicted_step_s for _, a in answers if isinstance(a.outcome, Plan)]
    assert all(after <= before * (1 + 1e-8) for before, after in pairwise(steps_s))
