from dataclasses import replace
from itertools import product

import pytest

from tests.support.pipelines import random_pipeline, uniform
from tests.support.planning import nodes
from varuna_manager.planner.groups import groups
from varuna_manager.planner.luck import SEEDS, drawn, luck
from varuna_manager.planner.pipeline import interfaces
from varuna_manager.planner.pools import SlotPool, pools
from varuna_manager.planner.simulate import quantiles, simulate
from varuna_manager.planner.timing import OWN_LINK, Boundary, Pipeline
from varuna_runtime.spec.layout import Layout, ScheduleKind

SKEWED = tuple(0.9 + 0.02 * n**2 for n in range(5))  # mean 1.01


def jittered(num_micro: int) -> Pipeline:
    return replace(uniform(num_micro), compute_factor=SKEWED)


def test_draws_spread_evenly_whatever_argument_changes() -> None:
    every = [luck(*place) / SEEDS for place in product(range(8), range(8), range(16), range(7))]
    tenths = [sum(1 for draw in every if n <= draw * 10 < n + 1) / len(every) for n in range(10)]
    assert tenths == pytest.approx([0.1] * 10, abs=0.01)
    for axis in range(4):
        places = [[0, 0, 0, 0] for _ in range(7)]
        for n, place in enumerate(places):
            place[axis] = n
        assert len({luck(*place) for place in places}) == 7


def test_a_draw_lies_between_the_quantiles_around_it() -> None:
    assert drawn((1.0, 2.0, 10.0), 0) == 1.0
    assert drawn((1.0, 2.0, 10.0), SEEDS // 4) == 1.5
    assert drawn((1.0, 2.0, 10.0), SEEDS // 4 * 3) == 6.0
    assert drawn((1.0, 2.0, 10.0), SEEDS - 1) == pytest.approx(10.0)


def test_equal_seeds_give_equal_steps_and_no_seed_the_profiled_times() -> None:
    asked = jittered(16)
    assert simulate(asked).step_s == simulate(uniform(16)).step_s
    assert simulate(asked, 7) == simulate(asked, 7)
    assert len({simulate(asked, seed).step_s for seed in range(8)}) == 8


def test_without_quantiles_a_seed_changes_nothing() -> None:
    assert simulate(uniform(16), 7) == simulate(uniform(16))
    assert quantiles(uniform(16), range(4)).p95_s == simulate(uniform(16)).step_s


def test_the_same_op_has_the_same_luck_under_every_schedule() -> None:
    """With one stage all schedules run the same ops, and so take equally long."""
    alone = replace(jittered(16), stages=uniform(16).stages[:1], boundaries=())
    kinds = [kind for kind in ScheduleKind if kind is not ScheduleKind.ZERO_BUBBLE]
    assert len({round(simulate(replace(alone, schedule=kind), 3).step_s, 9) for kind in kinds}) == 1


def test_replicas_have_luck_of_their_own() -> None:
    twice = replace(jittered(8), micro_batches=(8, 8))
    first, second = groups(twice, 1)
    assert (first.first_micros, second.first_micros) == ((0,), (8,))
    assert groups(twice) == groups(jittered(8))


def test_the_spread_of_steps_is_ordered_and_luck_of_skewed_times_costs() -> None:
    spread = quantiles(jittered(32), range(40))
    assert simulate(uniform(32)).step_s < spread.p50_s < spread.p95_s
    assert spread.p50_s < spread.mean_s * 1.05


def test_a_late_message_holds_up_those_behind_it() -> None:
    late = replace(uniform(4), boundaries=(Boundary(serial_s=0.0, latency_s=0.0, late_s=(0.0, 50.0)),) * 3)
    assert simulate(late, 1).step_s > simulate(uniform(4)).step_s + 10.0


# Shared interfaces: stages 1 and 2 of four share a node, so 1 sends gradients and 2 activations out of it.

SLOW = (Boundary(serial_s=4.0, latency_s=0.0),) * 3
PAIR = ((OWN_LINK, OWN_LINK), (OWN_LINK, 0), (0, OWN_LINK), (OWN_LINK, OWN_LINK))


def test_stages_that_share_an_interface_wait_for_each_other() -> None:
    alone = replace(uniform(8), boundaries=SLOW)
    shared = replace(alone, interfaces=PAIR)
    assert simulate(shared).step_s > simulate(alone).step_s
    # 8 activations and 8 gradients leave by the one interface.
    assert simulate(shared).step_s >= 16 * 4.0


def test_replicas_that_share_an_interface_are_simulated_together() -> None:
    both = replace(uniform(8), boundaries=SLOW, micro_batches=(8, 8), interfaces=PAIR * 2)
    (group,) = groups(both)
    assert group.micro_batches == (8, 8)
    assert simulate(both).step_s >= 32 * 4.0
    apart = replace(both, interfaces=(*PAIR, *(tuple(w + (w == 0) for w in pair) for pair in PAIR)))
    assert len(groups(apart)) == 1  # two groups, which are alike
    assert simulate(apart) == simulate(replace(uniform(8), boundaries=SLOW, interfaces=PAIR))


@pytest.mark.parametrize("seed", range(100))
def test_an_interface_that_nobody_shares_is_a_link(seed: int) -> None:
    asked = random_pipeline(seed)
    ranks = len(asked.stages) * len(asked.micro_batches)
    own = tuple((2 * rank, 2 * rank + 1) for rank in range(ranks))
    assert simulate(replace(asked, interfaces=own)) == simulate(replace(asked, interfaces=()))


def pool(slots: int, num_nodes: int) -> SlotPool:
    (found,) = pools(nodes(num_nodes, slots=slots), num_nodes)[:1]
    return found


def test_what_two_slots_of_a_node_send_out_shares_its_interface() -> None:
    """Stages 0 1 2 | 0 1 2 on nodes of two slots: 0 1, 2 0, 1 2."""
    shared = interfaces(pool(2, 3), Layout(stages=3, replicas=2))
    assert shared == ((-1, -1), (0, -1), (-1, 1), (1, -1), (-1, 2), (-1, -1))


def test_what_one_slot_sends_both_ways_shares_the_interface_of_its_node() -> None:
    assert interfaces(pool(1, 3), Layout(stages=3, replicas=1)) == ((0, -1), (1, 1), (-1, 2))


@pytest.mark.parametrize("slots", [1, 4])
def test_nothing_is_shared_where_no_node_sends_both_ways(slots: int) -> None:
    assert interfaces(pool(slots, 8), Layout(stages=2, replicas=4)) == ()
