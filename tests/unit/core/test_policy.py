from dataclasses import replace

import pytest

from tests.support.core_records import BATCH, MODEL, plan_for
from tests.support.core_sim import Sim
from varuna_manager.core import policy
from varuna_manager.core.config import CoreConfig
from varuna_runtime.spec.generation import Cause
from varuna_runtime.spec.job import Retries
from varuna_runtime.spec.layout import Plan, Slot


def _plan(num_nodes: int) -> Plan:
    plan = plan_for([(f"n{i}", 1) for i in range(num_nodes)], BATCH)
    assert isinstance(plan, Plan)
    return plan


def test_the_wait_doubles_up_to_its_cap_and_is_none_without_a_failure() -> None:
    config = CoreConfig(failure_backoff_s=1.0, failure_backoff_cap_s=5.0)
    waits = [policy.backoff_s(config, n) for n in (0, 1, 2, 3, 4, 1000)]
    assert waits == [0.0, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_failed_starts_and_crashes_share_one_count() -> None:
    failures = policy.charged(policy.charged({}, Cause.START_FAILED), Cause.WORKER_CRASH)
    assert failures == {Cause.WORKER_CRASH: 2}


@pytest.mark.parametrize(
    ("cause", "allowed"),
    [(Cause.USER_ERROR, 1), (Cause.WORKER_CRASH, 2), (Cause.START_FAILED, 2), (Cause.HANG, 3)],
)
def test_each_cause_has_the_budget_of_the_job_file(cause: Cause, allowed: int) -> None:
    assert policy.budget(Retries(user_error=1, worker_crash=2, hang=3), cause) == allowed


def test_the_gain_is_the_share_of_the_step_that_is_saved() -> None:
    assert policy.gain(_plan(1), _plan(2)) == pytest.approx(0.5)
    assert policy.gain(_plan(2), _plan(1)) < 0
    assert policy.gain(replace(_plan(1), predicted_step_s=0.0), _plan(2)) == 0.0


@pytest.mark.parametrize(
    ("batch_size", "micro", "num_slots", "replicas"),
    [(32, "auto", 2, 2), (1, "auto", 2, 1), (32, 32, 2, 1), (32, 16, 2, 2), (7, 4, 1, 1)],
)
def test_a_profile_plan_obeys_the_invariants_of_a_plan(
    batch_size: int, micro: int | str, num_slots: int, replicas: int
) -> None:
    sim = Sim()
    sim.submit("j")
    job = sim.job("j")
    spec = job.spec.model_copy(update={"batch_size": batch_size, "micro_batch_size": micro})
    batch = policy.profile_batch(replace(job, spec=spec), num_slots)
    slots = tuple(Slot(node=f"n{i}", index=0) for i in range(num_slots))
    plan = policy.profile_plan(MODEL, slots, batch)
    assert (
        plan.layout.replicas == replicas <= batch.virtual_replicas <= -(-batch_size // batch.micro_batch_size)
    )
    assert len(plan.placement) == plan.layout.world_size
