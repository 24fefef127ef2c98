"""Running steps against the profile: what a window of them changes, and what it must not."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.core_records import PROFILE
from tests.support.core_sim import Sim
from varuna_manager.core import actions as a
from varuna_manager.core import events as e
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.pace import WARM_UP_STEPS
from varuna_manager.core.state import Run
from varuna_manager.core.step import replay
from varuna_manager.planner.refresh import busy_s
from varuna_manager.planner.request import PlannableNode
from varuna_runtime.spec.profile import Profile

WINDOW, INTERVAL_S = CoreConfig().refresh_steps, CoreConfig().refresh_interval_s


@pytest.fixture
def sim() -> Sim:
    sim = Sim()
    for node in "ab":
        sim.join(node)
    sim.submit("j")
    return sim


def run_of(sim: Sim) -> Run:
    run = sim.job("j").run
    assert run is not None
    return run


def profile_of(sim: Sim) -> Profile:
    found = sim.job("j").profile
    assert found is not None
    return found


def train(
    sim: Sim, count: int, factors: Mapping[int, float], *, samples: int = 32, own: tuple[int, int] = (16, 16)
) -> None:
    """Both ranks tell of `count` steps; on their own samples they take a factor times what PROFILE says."""
    run = run_of(sim)
    (expected_s,) = busy_s(PROFILE, run.plan)
    for _ in range(count):
        index = sim.steps["j"]
        sim.steps["j"] = index + 1
        for rank in run.ranks:
            sim.feed(
                e.StepSeen(
                    at_s=sim.now_s,
                    job="j",
                    generation=run.number,
                    step=index,
                    loss=1.0,
                    samples=samples,
                    step_s=0.5,
                    loss_hex=(1.0).hex(),
                    rank=rank,
                    busy_s=own[rank] / 4 * expected_s * factors.get(rank, 1.0),
                    busy_samples=own[rank],
                )
            )


def refreshes(sim: Sim) -> list[e.ProfileRefreshed]:
    return [event for event in sim.journal if isinstance(event, e.ProfileRefreshed)]


def last_request(sim: Sim) -> a.MakePlan:
    found = sim.all_of(a.MakePlan)[-1]
    assert isinstance(found, a.MakePlan)
    return found


def test_steps_that_go_on_to_take_longer_change_the_profile_once_and_are_told(sim: Sim) -> None:
    train(sim, WARM_UP_STEPS + WINDOW, {0: 1.5, 1: 1.5})
    (event,) = refreshes(sim)
    assert event.factors == pytest.approx((1.5,))
    assert event.slow == {}
    assert busy_s(profile_of(sim), run_of(sim).plan)[0] == pytest.approx(
        1.5 * busy_s(PROFILE, run_of(sim).plan)[0]
    )
    assert profile_of(sim).refreshed_by == "steps of generation 2 up to 25"
    told = [x for x in sim.all_of(a.Announce) if isinstance(x, a.Announce) and x.what == "profile-refreshed"]
    assert [x.why for x in told] == ["up to step 25 ops took 1.50 times what the profile said"]
    sim.pass_time(INTERVAL_S)
    train(sim, 5 * WINDOW, {0: 1.5, 1: 1.5})
    assert len(refreshes(sim)) == 1
    assert replay(sim.journal, sim.config) == sim.state.durable()


def test_the_running_plan_stays(sim: Sim) -> None:
    before = run_of(sim)
    train(sim, WARM_UP_STEPS + WINDOW, {0: 3.0, 1: 3.0})
    assert run_of(sim) == before


@pytest.mark.parametrize("factors", [{}, {0: 1.09, 1: 1.09}, {0: 0.92, 1: 0.92}, {0: 1.2}])
def test_times_about_as_known_change_nothing(sim: Sim, factors: dict[int, float]) -> None:
    train(sim, WARM_UP_STEPS + 3 * WINDOW, factors)
    assert refreshes(sim) == []
    assert profile_of(sim) == PROFILE


def test_less_than_a_window_changes_nothing(sim: Sim) -> None:
    train(sim, WARM_UP_STEPS + WINDOW - 1, {0: 2.0, 1: 2.0})
    assert refreshes(sim) == []


def test_the_first_steps_of_a_generation_do_not_count(sim: Sim) -> None:
    train(sim, WARM_UP_STEPS, {0: 50.0, 1: 50.0})
    train(sim, WINDOW, {})
    assert refreshes(sim) == []


def test_short_steps_do_not_count(sim: Sim) -> None:
    train(sim, WARM_UP_STEPS + 3 * WINDOW, {0: 2.0, 1: 2.0}, samples=31)
    assert refreshes(sim) == []


def test_a_rank_with_fewer_samples_is_not_a_fast_one(sim: Sim) -> None:
    train(sim, WARM_UP_STEPS + WINDOW, {}, own=(18, 14))
    assert refreshes(sim) == []


def test_a_minority_of_slow_steps_does_not_count(sim: Sim) -> None:
    train(sim, WARM_UP_STEPS, {})
    for _ in range(3):
        train(sim, 9, {0: 100.0, 1: 100.0})
        train(sim, 11, {})
    assert refreshes(sim) == []


def test_steps_of_agents_that_do_not_tell_their_ops_change_nothing(sim: Sim) -> None:
    sim.train("j", 3 * WINDOW)
    assert refreshes(sim) == []


def test_times_that_go_up_and_down_change_the_profile_once_in_an_interval(sim: Sim) -> None:
    train(sim, WARM_UP_STEPS, {})
    for _ in range(20):
        train(sim, WINDOW, {0: 2.0, 1: 2.0})
        train(sim, WINDOW, {})
    assert len(refreshes(sim)) == 1
    sim.pass_time(INTERVAL_S)
    train(sim, 1, {})
    assert len(refreshes(sim)) == 2
    assert busy_s(profile_of(sim), run_of(sim).plan) == pytest.approx(busy_s(PROFILE, run_of(sim).plan))


def test_one_change_is_bounded(sim: Sim) -> None:
    train(sim, WARM_UP_STEPS + WINDOW, {0: 1e6, 1: 1e6})
    assert [event.factors for event in refreshes(sim)] == [(sim.config.refresh_max,)]
    sim.pass_time(INTERVAL_S)
    train(sim, WINDOW, {0: 1e-6, 1: 1e-6})
    assert refreshes(sim)[-1].factors == (1 / sim.config.refresh_max,)


def test_a_node_that_is_slower_than_its_peers_is_planned_with_as_slow_and_the_stage_keeps_its_times(
    sim: Sim,
) -> None:
    train(sim, WARM_UP_STEPS + WINDOW, {1: 2.0})
    (event,) = refreshes(sim)
    assert event.factors == pytest.approx((1.0,))
    assert event.slow == pytest.approx({"b": 2.0})
    sim.join("c")
    assert speeds(last_request(sim).request.nodes) == {"a": 1.0, "b": 0.5, "c": 1.0}


def test_a_slow_node_that_recovers_is_fast_again_but_not_at_the_first_sign(sim: Sim) -> None:
    train(sim, WARM_UP_STEPS + WINDOW, {1: 2.0})
    sim.pass_time(INTERVAL_S)
    train(sim, WINDOW, {1: 1.2})
    assert "b#1" in sim.job("j").slow
    train(sim, WINDOW, {})
    assert sim.job("j").slow == {}
    assert len(refreshes(sim)) == 2


def test_a_slow_node_is_forgotten_after_a_while_and_with_its_incarnation(sim: Sim) -> None:
    train(sim, WARM_UP_STEPS + WINDOW, {1: 2.0})
    sim.pass_time(sim.config.slow_memory_s / 2)
    sim.join("c")
    assert speeds(last_request(sim).request.nodes)["b"] == 0.5
    sim.pass_time(sim.config.slow_memory_s / 2 + 1)
    sim.join("d")
    assert speeds(last_request(sim).request.nodes)["b"] == 1.0


def test_a_node_that_goes_on_to_be_slow_is_planned_with_as_slow_for_as_long(sim: Sim) -> None:
    train(sim, WARM_UP_STEPS + WINDOW, {1: 2.0})
    for _ in range(4):
        sim.pass_time(sim.config.slow_memory_s / 2 + 1)
        train(sim, WINDOW, {1: 2.0})
    assert len(refreshes(sim)) == 3, "once it would be forgotten, and no more often"
    sim.join("c")
    assert speeds(last_request(sim).request.nodes)["b"] == 0.5


def test_slow_nodes_of_long_ago_do_not_pile_up(sim: Sim) -> None:
    for number in range(1, 4):
        train(sim, WARM_UP_STEPS + WINDOW, {1: 2.0})
        assert f"b#{number}" in sim.job("j").slow
        sim.left("b")
        sim.join("b")
        sim.pass_time(sim.config.slow_memory_s + 1)
    train(sim, WARM_UP_STEPS + WINDOW, {1: 2.0})
    assert set(sim.job("j").slow) == {"b#4"}


def test_a_manager_that_starts_again_begins_a_new_window(sim: Sim) -> None:
    train(sim, WARM_UP_STEPS + WINDOW - 1, {0: 2.0, 1: 2.0})
    sim.restart()
    sim.return_all()
    train(sim, 1, {0: 2.0, 1: 2.0})
    assert refreshes(sim) == []
    train(sim, WINDOW - 1, {0: 2.0, 1: 2.0})
    assert len(refreshes(sim)) == 1


def test_an_event_of_an_older_generation_is_void(sim: Sim) -> None:
    train(sim, WARM_UP_STEPS + WINDOW, {0: 2.0, 1: 2.0})
    (event,) = refreshes(sim)
    sim.left("b")
    before = profile_of(sim)
    sim.feed(event)
    assert profile_of(sim) == before


def test_after_a_refresh_growth_compares_plans_by_the_same_profile(sim: Sim) -> None:
    train(sim, WARM_UP_STEPS + WINDOW, {0: 3.0, 1: 3.0})
    sim.pass_time(10)
    sim.hold("plan")
    sim.join("c")
    assert last_request(sim).request.running == run_of(sim).plan
    generation = sim.job("j").generation
    ((_, _, answer),) = sim.waiting
    assert isinstance(answer, e.PlanMade)
    # The larger plan saves nothing against what the running one takes by the profile of now.
    sim.waiting = [("plan", None, replace(answer, running_step_s=answer_step_s(answer)))]
    sim.release("plan")
    sim.pass_time(10)
    assert sim.job("j").generation == generation


def test_without_a_refresh_the_planner_is_not_asked_about_the_running_plan(sim: Sim) -> None:
    sim.join("c")
    assert last_request(sim).request.running is None


def answer_step_s(answer: e.PlanMade) -> float:
    assert not isinstance(answer.outcome, e.Infeasible)
    return answer.outcome.predicted_step_s


def speeds(nodes: tuple[PlannableNode, ...]) -> dict[str, float]:
    return {node.node: node.speed for node in nodes}


def test_a_refresh_voids_the_plan_that_was_made_ahead(sim: Sim) -> None:
    sim.notice("b", 200.0)
    assert sim.job("j").ahead is not None
    train(sim, WARM_UP_STEPS + WINDOW, {0: 2.0, 1: 2.0})
    assert sim.job("j").ahead is None
