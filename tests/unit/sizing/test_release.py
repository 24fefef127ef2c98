"""Machines are ended by name, never with work on them, and until the provider says that they are gone."""

import pytest

from tests.support.sizing_market import Market, Sized
from varuna_manager.cloud.provider import InstancePhase, ProviderError, Trouble
from varuna_manager.core.events import NodeLeft, NoticeReceived
from varuna_manager.core.phases import JobPhase, NodePhase
from varuna_manager.core.words import What
from varuna_manager.pool_settings import Sizing


def running(sized: Sized, job: str, **spec: object) -> None:
    sized.submit(job, **spec)
    sized.run_s(120)
    assert sized.job(job).phase is JobPhase.RUNNING


def test_when_nothing_is_left_to_do_every_node_goes_after_the_idle_time() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    running(sized, "j", max=4)
    sized.finish("j")
    sized.run_s(250)
    assert len(spot.living) == 4
    sized.run_s(150)
    assert (spot.living, spot.desired) == ([], 0)
    assert all(node.phase is NodePhase.LEFT for node in sized.state.nodes.values())


def test_a_job_that_comes_before_the_idle_time_is_over_takes_the_nodes_there_are() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    running(sized, "j", max=4)
    sized.finish("j")
    sized.run_s(200)
    sized.submit("k", max=4)
    sized.run_s(900)
    assert spot.writes == ["grow 4"]
    assert sized.job("k").phase is JobPhase.RUNNING


def test_m7_a_cancel_while_machines_are_on_their_way_ends_them() -> None:
    spot = Market("spot", boot_s=120.0)
    sized = Sized(spot)
    sized.submit("j", max=4)
    sized.run_s(30)
    assert len(spot.living) == 4
    sized.cancel("j")
    sized.run_s(60)
    assert (spot.living, spot.desired) == ([], 0)


def test_m7_a_cancel_takes_back_what_the_provider_still_owes() -> None:
    spot = Market("spot")
    spot.is_slow = True
    sized = Sized(spot)
    sized.submit("j", max=4)
    sized.run_s(30)
    sized.cancel("j")
    sized.run_s(60)
    assert spot.desired == 0


def test_a_preempted_node_and_its_replacement_are_not_one_too_many() -> None:
    spot, other = Market("spot"), Market("other")
    sized = Sized(spot, other, spot={"max": 3})
    running(sized, "j", max=4)
    for market in (spot, other):
        market.preempt(market.living[0])
        market.advance(sized.now_s)
        for name in ("spot", "other"):
            sized.pass_of(name)
    sized.run_s(300)
    assert [w for market in (spot, other) for w in market.writes if "release" in w] == []
    assert sized.num_living() == 4


def test_m44_only_idle_nodes_are_ended_and_the_target_is_exact() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    running(sized, "j", max=6)
    sized.finish("j")
    sized.max_nodes_planned = 4
    running(sized, "k", max=4)
    sized.run_s(600)
    members = set(sized.job("k").run.members)  # type: ignore[union-attr]
    assert len(members) == 4
    assert set(spot.living) == members
    assert spot.desired == 4


def test_spares_that_the_planner_has_no_use_for_are_released_and_not_bought_again() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    sized.max_nodes_planned = 3
    running(sized, "j", max=6)
    assert len(spot.living) == 6
    sized.run_s(600)
    assert len(spot.living) == 3
    before = list(spot.writes)
    sized.run_s(2400)
    assert spot.writes == before
    sized.run_s(1800)
    assert any(write == "grow 6" for write in spot.writes[len(before) :])


def test_a_doubt_that_was_wrong_comes_later_each_time() -> None:
    spot = Market("spot")
    sized = Sized(spot, sizing=Sizing(poll_s=60.0))
    sized.max_nodes_planned = 3
    sized.submit("j", max=6)
    sized.run_s(48 * 3600)
    probes = [write for write in spot.writes if write == "grow 6"]
    assert 5 <= len(probes) <= 10
    sized.max_nodes_planned = 99
    sized.run_s(9 * 3600)
    assert len(sized.job("j").run.members) == 6  # type: ignore[union-attr]


def test_what_a_job_leaves_unused_while_one_node_is_under_notice_says_nothing_of_its_use_for_all() -> None:
    """Three nodes may be no better than two, and four all the same worth having."""
    spot = Market("spot")
    sized = Sized(spot)
    running(sized, "j", max=4)
    victim = spot.living[0]
    sized.max_nodes_planned = 2
    sized.notice(victim, 20.0)
    sized.run_s(600)
    assert len(sized.job("j").run.members) == 2
    sized.max_nodes_planned = 99
    spot.machines[victim].phase = InstancePhase.GONE
    sized.run_s(300)
    assert len(spot.living) == 4


def test_nodes_whose_launcher_takes_long_to_open_are_not_taken_for_useless() -> None:
    spot = Market("spot", stock=1)
    sized = Sized(spot)
    running(sized, "j", max=3)
    sized.held.add("warm")
    spot.stock = 8
    sized.run_s(900)
    assert len(sized.job("j").run.members) == 1
    assert len(spot.living) == 3


def test_a_job_that_no_pool_can_hold_lets_the_nodes_go() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    sized.is_feasible = False
    sized.submit("j", max=4)
    sized.run_s(1200)
    assert sized.job("j").phase is JobPhase.PARKED
    assert spot.living == []


def test_m36_stock_that_comes_and_goes_does_not_churn_the_nodes() -> None:
    spot = Market("spot", stock=8)
    sized = Sized(spot)
    running(sized, "j", max=8)
    morphs = sized.job("j").morphs
    for turn in range(60):
        spot.stock = 2 if turn % 2 else 8
        sized.run_s(20)
    assert len(spot.living) == 8
    assert sized.job("j").morphs == morphs


def test_m27_a_machine_that_never_joins_is_ended_and_replaced_a_few_times_only() -> None:
    spot = Market("spot")
    spot.is_mute = True
    sized = Sized(spot, sizing=Sizing(boot_timeout_s=300.0, boot_attempts=3, backoff_cap_s=3600.0))
    sized.submit("j", max=1)
    sized.run_s(1200)
    assert len(spot.machines) == 3
    assert spot.living == []
    assert len(sized.told(What.MACHINE_ENDED)) == 3
    (trouble,) = sized.told(What.POOL_TROUBLE)
    assert "never joined" in trouble
    spot.is_mute = False
    sized.run_s(3600)
    assert len(spot.living) == 1
    assert sized.job("j").phase is JobPhase.RUNNING


@pytest.mark.parametrize("lives_s", [0.0, 15.0])
def test_machines_that_end_by_themselves_before_they_join_are_started_a_few_times_only(
    lives_s: float,
) -> None:
    spot = Market("spot", boot_s=60.0)
    spot.fleeting_s = lives_s
    sized = Sized(spot, sizing=Sizing(boot_attempts=3, backoff_cap_s=3600.0))
    sized.submit("j", max=1)
    sized.run_s(1200)
    assert len(spot.machines) == 3
    (trouble,) = sized.told(What.POOL_TROUBLE)
    assert "never joined" in trouble
    assert len(sized.told(What.POOL_GROWS)) == 3
    spot.fleeting_s = None
    sized.run_s(3600)
    assert sized.job("j").phase is JobPhase.RUNNING


def test_m11_a_machine_whose_agent_died_is_ended_and_replaced() -> None:
    spot = Market("spot")
    sized = Sized(spot, sizing=Sizing(boot_timeout_s=300.0))
    running(sized, "j", max=2)
    victim = spot.living[0]
    node = sized.node(victim)
    sized.agents[victim].is_alive = False
    sized.feed(
        NodeLeft(at_s=sized.now_s, node=victim, incarnation=node.incarnation, reason="agent was stopped")
    )
    sized.run_s(200)
    assert victim in spot.living
    sized.run_s(300)
    assert victim not in spot.living
    assert len(spot.living) == 2


def test_a_node_that_an_operator_drained_takes_its_machine_with_it() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    running(sized, "j", max=2)
    victim = spot.living[0]
    sized.drain(victim)
    sized.run_s(120)
    assert victim not in spot.living
    assert len(spot.living) == 2


def test_m9_a_release_that_fails_is_repeated_until_the_list_is_empty() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    running(sized, "j", max=3)
    sized.finish("j")
    spot.fails_write = ProviderError("409 Conflict", trouble=Trouble.RETRY)
    sized.run_s(400)
    assert len(spot.living) == 3
    assert len(sized.told(What.POOL_TROUBLE)) == 1
    spot.fails_write = None
    sized.run_s(60)
    assert spot.living == []


def test_m9_a_lost_answer_of_a_release_does_not_lower_the_target_twice() -> None:
    spot = Market("spot")
    sized = Sized(spot, spot={"min": 1})
    running(sized, "j", max=3)
    sized.finish("j")
    spot.loses_answers = True
    sized.run_s(900)
    assert (len(spot.living), spot.desired) == (1, 1)


def test_m19_a_machine_that_does_not_go_is_asked_for_again_and_told() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    running(sized, "j", max=1)
    spot.ignores_release = True
    sized.finish("j")
    sized.run_s(1200)
    assert len(spot.living) == 1
    assert 5 < len([w for w in spot.writes if w.startswith("release")]) < 20
    (line,) = sized.told(What.MACHINE_STUCK)
    assert "may cost money" in line
    spot.ignores_release = False
    sized.run_s(120)
    assert spot.living == []
    assert not sized.state.ending


def test_m19_a_provider_that_ignores_us_is_told_once_not_each_time() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    running(sized, "j", max=1)
    spot.ignores_release = True
    sized.finish("j")
    sized.run_s(1200)
    assert len(sized.told(What.POOL_RELEASES)) == 1


def test_a_machine_that_went_while_no_manager_looked_is_not_remembered_for_ever() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    running(sized, "j", max=1)
    spot.ignores_release = True
    sized.finish("j")
    sized.run_s(600)
    (node,) = sized.state.ending
    del spot.machines[node]
    spot.desired = 0
    sized.restart_all()
    sized.run_s(30)
    assert not sized.state.ending


def test_m19_a_node_whose_machine_does_not_go_is_never_used_again() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    running(sized, "j", max=1)
    spot.ignores_release = True
    sized.finish("j")
    sized.run_s(600)
    (node,) = spot.living
    sized.join(node)
    assert sized.node(node).phase is NodePhase.LEFT


def test_m45_a_machine_that_joins_late_gets_no_work() -> None:
    spot = Market("spot", boot_s=100.0)
    sized = Sized(spot)
    sized.submit("j", max=1)
    sized.run_s(40)
    spot.ignores_release = True
    sized.cancel("j")
    sized.run_s(120)
    sized.submit("k", max=1)
    late = "spot-1"
    assert sized.state.nodes[late].phase is NodePhase.LEFT
    spot.ignores_release = False
    sized.run_s(240)
    assert sized.job("k").phase is JobPhase.RUNNING
    assert late not in sized.job("k").run.members  # type: ignore[union-attr]


def test_m16_a_machine_that_appears_although_nobody_wants_it_is_ended() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    sized.run_s(60)
    spot.desired = 1
    sized.run_s(60)
    assert spot.living == []


def test_a_stray_is_ended_after_its_grace() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    stray = spot.launch()
    spot.machines[stray].is_stray = True
    sized.run_s(50)
    assert spot.machines[stray].phase is not InstancePhase.GONE
    sized.run_s(60)
    assert spot.machines[stray].phase is InstancePhase.GONE
    assert spot.desired == 0


def test_the_grace_of_a_stray_begins_when_it_becomes_one() -> None:
    spot = Market("spot")
    sized = Sized(spot, spot={"min": 1})
    sized.run_s(600)
    (stray,) = spot.living
    spot.machines[stray].is_stray = True
    sized.run_s(50)
    assert spot.machines[stray].phase is InstancePhase.RUNNING
    sized.run_s(60)
    assert spot.machines[stray].phase is InstancePhase.GONE


def test_a_machine_that_cannot_be_ended_does_not_keep_another_from_taking_its_place() -> None:
    spot = Market("spot")
    sized = Sized(spot, sizing=Sizing(boot_timeout_s=300.0), spot={"max": 3})
    running(sized, "j", max=2)
    victim = spot.living[0]
    node = sized.node(victim)
    sized.agents[victim].is_alive = False
    sized.feed(
        NodeLeft(at_s=sized.now_s, node=victim, incarnation=node.incarnation, reason="its host is down")
    )
    spot.ignores_release = True
    sized.run_s(600)
    assert victim in spot.living
    assert len(spot.living) == 3
    assert len(sized.ready()) == 2


def test_a_stopped_machine_is_no_supply_and_is_ended() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    running(sized, "j", max=2)
    victim = spot.living[0]
    spot.machines[victim].phase = InstancePhase.STOPPED
    spot.machines[victim].reason = "deallocated"
    spot.desired = 1
    sized.run_s(240)
    assert spot.machines[victim].phase is InstancePhase.GONE
    assert len(spot.living) == 2
    assert sized.node(victim).phase is NodePhase.LEFT


def test_m37_a_machine_that_is_gone_is_gone_at_once_whatever_its_notice_said() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    running(sized, "j", max=2)
    victim = spot.living[0]
    sized.notice(victim, 120.0)
    spot.preempt(victim)
    sized.turn()
    assert sized.node(victim).phase is NodePhase.LEFT


def test_m15_the_providers_word_outranks_a_living_stream() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    running(sized, "j", max=2)
    victim = spot.living[0]
    del spot.machines[victim]  # vanished from a complete reading
    sized.pass_of("spot")
    assert sized.node(victim).phase is NodePhase.LEFT
    assert "no longer listed" in sized.node(victim).reason


def test_an_announced_end_is_a_notice_from_the_provider_and_is_taken_back_with_it() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    running(sized, "j", max=2)
    victim = spot.living[0]
    spot.machines[victim].leaves_at_s = sized.now_s + 200.0
    sized.pass_of("spot")
    sized.pass_of("spot")
    assert sized.node(victim).phase is NodePhase.NOTICED
    assert sized.node(victim).notice_source == "pool spot"
    assert sum(isinstance(event, NoticeReceived) for event in sized.journal) == 1
    spot.machines[victim].leaves_at_s = None
    sized.pass_of("spot")
    assert sized.node(victim).phase is NodePhase.READY


@pytest.mark.parametrize("leaves_in_s", [200.0, None])
def test_the_agents_own_earlier_notice_stands(leaves_in_s: float | None) -> None:
    """Whether the provider says something else or nothing; an agent on AWS calls its source `aws`."""
    spot = Market("spot")
    sized = Sized(spot)
    running(sized, "j", max=2)
    victim = spot.living[0]
    sized.notice(victim, 100.0, source="aws")
    if leaves_in_s is not None:
        spot.machines[victim].leaves_at_s = sized.now_s + leaves_in_s
    sized.pass_of("spot")
    assert sized.node(victim).phase is NodePhase.NOTICED
    assert sized.node(victim).notice_source == "aws"


@pytest.mark.parametrize(("is_drained", "within_s"), [(True, 20.0), (False, 200.0)])
def test_m26_a_leaving_machine_is_let_go_after_the_hand_over_or_just_before_its_end(
    is_drained: bool, within_s: float
) -> None:
    spot = Market("spot")
    sized = Sized(spot)
    running(sized, "j", max=2)
    victim = spot.living[0]
    if not is_drained:
        sized.hold("drain")
    end_s = sized.now_s + 200.0
    spot.machines[victim].phase = InstancePhase.LEAVING
    spot.machines[victim].leaves_at_s = end_s
    sized.pass_of("spot")
    assert f"let go {victim}" not in spot.writes
    assert sized.node(victim).notice_deadline_s == end_s
    while f"let go {victim}" not in spot.writes:
        sized.now_s += 5.0
        sized.pass_of("spot")
        assert sized.now_s <= end_s - 5.0
    if is_drained:
        assert not sized.state.is_busy(victim)
        assert sized.now_s <= end_s - 200.0 + within_s
    else:
        assert sized.now_s >= end_s - sized.sizing.leave_margin_s


def test_t32_a_machine_that_vanishes_before_its_agent_joined_is_replaced_without_an_error() -> None:
    spot = Market("spot", boot_s=60.0)
    sized = Sized(spot)
    sized.submit("j", max=1)
    sized.run_s(20)
    spot.preempt(spot.living[0])
    sized.run_s(200)
    assert sized.job("j").phase is JobPhase.RUNNING
    assert sized.told(What.POOL_TROUBLE) == []


def test_a_pool_that_is_not_sized_is_only_looked_at() -> None:
    local = Market("local")
    sized = Sized(local, local={"is_sized": False})
    local.desired = 2
    sized.run_s(60)
    sized.submit("j", max=4)
    sized.run_s(120)
    sized.finish("j")
    sized.run_s(2400)
    assert (len(local.living), local.writes) == (2, [])
