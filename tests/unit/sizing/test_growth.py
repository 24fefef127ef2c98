"""Pools follow the demand upwards: how much, where, and when not."""

import pytest

from tests.support.sizing_market import Market, Sized
from varuna_manager.cloud.provider import ProviderError, Trouble
from varuna_manager.core.events import NodesPlaced
from varuna_manager.core.phases import JobPhase
from varuna_manager.core.words import What
from varuna_manager.pool_settings import Sizing
from varuna_manager.sizing.books import Books
from varuna_manager.sizing.status import pool_views


def grows(market: Market) -> list[str]:
    return [write for write in market.writes if write.startswith("grow")]


def test_without_a_job_nothing_is_bought() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    sized.run_s(3600)
    assert (spot.desired, spot.writes) == (0, [])


def test_a_job_gets_its_nodes_in_one_step_and_runs_on_them() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    sized.submit("j", max=4)
    sized.run_s(120)
    assert grows(spot) == ["grow 4"]
    assert len(sized.ready()) == 4
    assert sized.job("j").phase is JobPhase.RUNNING
    assert len(sized.job("j").run.members) == 4  # type: ignore[union-attr]


def test_a_pool_is_never_asked_for_more_than_its_max_or_its_providers() -> None:
    spot = Market("spot")
    spot.most = 5
    sized = Sized(spot, spot={"max": 6})
    sized.submit("j", max=12)
    sized.run_s(600)
    assert grows(spot) == ["grow 5"]


def test_what_the_first_pool_may_not_give_comes_from_the_next() -> None:
    spot, other = Market("spot"), Market("other")
    sized = Sized(spot, other, spot={"max": 3})
    sized.submit("j", max=8)
    sized.run_s(120)
    assert (len(spot.living), len(other.living)) == (3, 5)


def test_the_cheapest_pool_grows_first_and_one_of_unknown_price_last() -> None:
    odd, dear, cheap = Market("odd"), Market("dear", price=3.0), Market("cheap", price=1.0)
    sized = Sized(odd, dear, cheap, sizing=Sizing(policy="cheapest"), cheap={"max": 2}, dear={"max": 2})
    sized.submit("j", max=5)
    sized.run_s(120)
    assert (len(cheap.living), len(dear.living), len(odd.living)) == (2, 2, 1)


def test_an_on_demand_pool_takes_over_what_spot_cannot_deliver_and_spot_gives_up() -> None:
    spot, fallback = Market("spot", stock=2), Market("fallback")
    sized = Sized(spot, fallback)
    sized.submit("j", max=6)
    sized.run_s(120)
    assert (len(spot.living), len(fallback.living)) == (2, 4)
    assert spot.desired == 2
    assert sized.num_living() == 6
    assert any("InsufficientInstanceCapacity" in why for why in sized.told(What.POOL_SHORT))


def test_machines_that_fail_at_once_are_a_shortage_although_the_growth_is_new() -> None:
    spot, fallback = Market("spot", stock=2), Market("fallback")
    spot.shows_failures = True
    sized = Sized(spot, fallback)
    sized.submit("j", max=6)
    for _ in range(50):  # what happens brings passes before their time
        sized.now_s += 1.0
        sized.turn()
    assert grows(spot) == ["grow 6"]
    assert (len(spot.living), len(fallback.living), spot.desired) == (2, 4, 2)
    assert len(sized.told(What.POOL_SHORT)) == 1


def test_m8_a_lost_answer_of_a_growth_does_not_double_the_machines() -> None:
    spot = Market("spot")
    spot.loses_answers = True
    sized = Sized(spot)
    sized.submit("j", max=4)
    sized.run_s(300)
    assert len(spot.living) == spot.desired == 4
    assert grows(spot) == ["grow 4"]


def test_m29_a_group_that_replaces_by_itself_is_not_raised() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    sized.submit("j", max=4)
    sized.run_s(120)
    spot.writes.clear()
    spot.is_slow = True
    for node in spot.living[:2]:
        spot.preempt(node)
    sized.run_s(60)
    assert (spot.desired, spot.writes) == (4, [])
    spot.is_slow = False
    sized.run_s(120)
    assert len(spot.living) == 4
    assert spot.writes == []


def test_m29_not_even_for_a_job_that_wants_more() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    sized.submit("j", max=2)
    sized.run_s(120)
    spot.is_slow = True
    spot.preempt(spot.living[0])
    sized.cancel("j")
    sized.submit("k", max=6)
    sized.run_s(60)
    assert spot.desired == 2
    spot.is_slow = False
    sized.run_s(120)
    assert len(spot.living) == 6


def test_m31_after_a_restart_with_every_read_throttled_nothing_is_written() -> None:
    spot, other = Market("spot"), Market("other")
    spot.desired = 4
    spot.fails_read = ProviderError("429", trouble=Trouble.THROTTLED, retry_after_s=30.0)
    sized = Sized(spot, other)
    sized.submit("j", max=8)
    sized.run_s(600)
    assert (spot.writes, other.writes) == ([], [])
    assert spot.desired == 4
    spot.fails_read = None
    sized.run_s(180)
    assert sized.num_living() == 8


def test_m33_a_pool_that_asks_for_quiet_is_not_called_before() -> None:
    spot = Market("spot")
    spot.fails_read = ProviderError("429", trouble=Trouble.THROTTLED, retry_after_s=30.0)
    sized = Sized(spot)
    sized.run_s(60)
    assert spot.num_reads <= 3
    assert len(sized.told(What.POOL_TROUBLE)) == 1


def test_throttling_without_a_time_backs_off_by_itself() -> None:
    spot = Market("spot")
    spot.fails_read = ProviderError("RequestLimitExceeded", trouble=Trouble.THROTTLED)
    sized = Sized(spot)
    sized.run_s(3600)
    assert spot.num_reads <= 10


def test_a_pool_that_never_answered_holds_the_others_up_no_longer_than_a_machine_boots() -> None:
    spot, other = Market("spot"), Market("other")
    spot.fails_read = ProviderError("503", trouble=Trouble.RETRY)
    sized = Sized(spot, other, sizing=Sizing(boot_timeout_s=300.0))
    sized.submit("j", max=4)
    sized.run_s(290)
    assert other.writes == []
    sized.run_s(120)
    assert len(other.living) == 4
    assert spot.writes == []


def test_under_a_budget_a_pool_that_never_answered_is_waited_for() -> None:
    spot, other = Market("spot"), Market("other", price=1.0)
    spot.fails_read = ProviderError("503", trouble=Trouble.RETRY)
    sized = Sized(spot, other, sizing=Sizing(max_price=4.0))
    sized.submit("j", max=4)
    sized.run_s(3600)
    assert other.writes == []
    assert sized.memory.of("other").limit == "waits for the first reading of spot"


def test_troubles_that_take_turns_are_told_once_each() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    for number in range(20):
        trouble = Trouble.AUTH if number % 2 else Trouble.RETRY
        spot.fails_read = ProviderError("no", trouble=trouble)
        sized.run_s(30)
    assert len(sized.told(What.POOL_TROUBLE)) == 2


def test_a_growth_that_is_refused_again_and_again_is_told_once() -> None:
    spot = Market("spot")
    spot.fails_write = ProviderError("another operation is in progress", trouble=Trouble.RETRY)
    sized = Sized(spot)
    sized.submit("j", max=4)
    sized.run_s(3600)
    assert len(sized.told(What.POOL_GROWS)) == 1
    assert len(sized.told(What.POOL_TROUBLE)) == 1
    spot.fails_write = None
    sized.run_s(120)
    assert len(spot.living) == 4
    assert len(sized.told(What.POOL_WELL)) == 1


def test_a_pool_that_is_short_is_not_called_well_before_it_has_delivered() -> None:
    spot = Market("spot", stock=1)
    sized = Sized(spot, sizing=Sizing(poll_s=60.0))
    sized.submit("j", max=4)
    sized.run_s(4 * 3600)
    assert sized.told(What.POOL_WELL) == []
    assert len(sized.told(What.POOL_SHORT)) <= 2
    spot.stock = 8
    sized.run_s(4 * 3600)
    assert len(spot.living) == 4
    assert len(sized.told(What.POOL_WELL)) == 1


def test_a_shortage_that_no_job_asks_about_any_more_is_over_one_day() -> None:
    spot = Market("spot", stock=0)
    sized = Sized(spot, sizing=Sizing(poll_s=60.0))
    sized.submit("j", max=4)
    sized.run_s(600)
    sized.cancel("j")
    sized.run_s(4 * 3600)
    assert len(sized.told(What.POOL_WELL)) == 1


@pytest.mark.parametrize("trouble", [Trouble.AUTH, Trouble.CONFIG])
def test_a_pool_that_needs_a_person_is_told_once_and_the_next_takes_over(trouble: Trouble) -> None:
    spot, other = Market("spot"), Market("other")
    spot.fails_read = ProviderError("AccessDenied for request 1", trouble=trouble)
    sized = Sized(spot, other)
    sized.submit("j", max=2)
    sized.run_s(300)
    assert len(other.living) == 2
    assert sized.told(What.POOL_TROUBLE) == [f"{trouble}: AccessDenied for request 1"]
    spot.fails_read = None
    sized.run_s(60)
    assert len(sized.told(What.POOL_WELL)) == 1


def test_a_quota_that_refuses_the_growth_sends_the_demand_on_and_is_told_once() -> None:
    spot, other = Market("spot"), Market("other")
    spot.fails_write = ProviderError("LowPriorityCores", trouble=Trouble.QUOTA)
    sized = Sized(spot, other)
    sized.submit("j", max=2)
    sized.run_s(3600)
    assert len(other.living) == 2
    assert len(sized.told(What.POOL_TROUBLE)) == 1


def test_a_shortage_halves_the_next_request_waits_longer_each_time_and_doubles_on_success() -> None:
    spot = Market("spot", stock=0)
    sized = Sized(spot, sizing=Sizing(backoff_s=60.0, backoff_cap_s=240.0))
    sized.submit("j", max=8)
    sized.run_s(1200)
    asked = grows(spot)
    assert asked[:5] == ["grow 8", "grow 4", "grow 2", "grow 1", "grow 1"]
    assert len(asked) <= 8
    spot.stock = 8
    spot.writes.clear()
    sized.run_s(400)
    assert grows(spot) == ["grow 1", "grow 3", "grow 7", "grow 8"]
    assert len(spot.living) == 8


def test_a_slow_group_that_says_nothing_counts_as_short_after_the_boot_timeout() -> None:
    spot, other = Market("spot"), Market("other")
    spot.is_slow = True
    sized = Sized(spot, other, sizing=Sizing(boot_timeout_s=300.0))
    sized.submit("j", max=2)
    sized.run_s(250)
    assert not other.living
    sized.run_s(200)
    assert len(other.living) == 2
    assert spot.desired == 0


def test_a_group_that_cannot_give_up_is_left_alone_and_its_late_machines_are_ended() -> None:
    spot, other = Market("spot", stock=1), Market("other")
    spot.cannot_give_up = True
    sized = Sized(spot, other)
    sized.submit("j", max=4)
    sized.run_s(150)
    assert (len(spot.living), len(other.living)) == (1, 3)
    spot.stock = 100
    sized.run_s(2400)
    assert sized.num_living() == 4


def test_the_minimum_of_a_pool_is_kept_without_any_job() -> None:
    spot = Market("spot")
    sized = Sized(spot, spot={"min": 2})
    sized.run_s(1200)
    assert len(spot.living) == 2
    spot.preempt(spot.living[0])
    spot.desired = 1
    sized.run_s(600)
    assert len(spot.living) == 2


def test_nodes_that_dial_in_by_themselves_count() -> None:
    spot = Market("spot")
    sized = Sized(spot)
    sized.join("mine-1")
    sized.join("mine-2")
    sized.submit("j", max=4)
    sized.run_s(120)
    assert len(spot.living) == 2


def test_the_budget_of_all_pools_bounds_what_is_bought() -> None:
    spot, dear = Market("spot", price=1.0), Market("dear", price=4.0)
    sized = Sized(spot, dear, sizing=Sizing(max_price=9.0), spot={"max": 4})
    sized.submit("j", max=16)
    sized.run_s(600)
    assert (len(spot.living), len(dear.living)) == (4, 1)
    assert "max_price allows no more" in sized.memory.of("dear").limit


def test_what_a_short_pool_may_still_deliver_is_in_the_budget() -> None:
    spot, dear = Market("spot", stock=1, price=1.0), Market("dear", price=2.0)
    spot.cannot_give_up = True
    sized = Sized(spot, dear, sizing=Sizing(max_price=6.0))
    sized.submit("j", max=4)
    sized.run_s(120)
    assert spot.desired == 4
    assert 4 * 1.0 + len(dear.living) * 2.0 <= 6.0
    spot.cannot_give_up = False
    sized.run_s(600)
    assert (len(spot.living), len(dear.living)) == (1, 2)


def test_the_budget_of_the_job_counts_too() -> None:
    spot = Market("spot", price=0.5)
    sized = Sized(spot, sizing=Sizing(max_price=9.0))
    sized.submit("j", max=16, max_price=2.0)
    sized.run_s(600)
    assert len(spot.living) == 4


def test_a_pool_of_unknown_price_is_not_grown_under_a_budget() -> None:
    spot = Market("spot")
    sized = Sized(spot, sizing=Sizing(max_price=9.0))
    sized.submit("j", max=4)
    sized.run_s(600)
    assert not spot.living
    assert "price is unknown" in sized.memory.of("spot").limit


def test_a_job_that_needs_more_nodes_than_there_can_be_buys_none() -> None:
    spot = Market("spot", price=1.0)
    sized = Sized(spot, spot={"max": 4})
    sized.submit("j", min=5, max=8)
    sized.run_s(600)
    assert spot.writes == []
    sized.submit("k", min=3, max=8, priority=60, max_price=2.0)
    sized.run_s(600)
    assert spot.writes == []


def test_no_write_while_an_earlier_one_is_under_way() -> None:
    spot = Market("spot")
    spot.is_writing = True
    sized = Sized(spot)
    sized.submit("j", max=4)
    sized.run_s(120)
    assert spot.writes == []


def test_a_setting_that_a_person_should_change_is_told_once() -> None:
    spot = Market("spot")
    spot.warnings = ("AZRebalance is not suspended",)
    sized = Sized(spot)
    sized.run_s(600)
    assert sized.told(What.POOL_WARNING) == ["AZRebalance is not suspended"]


def test_a_pinned_job_does_not_buy_nodes_of_another_kind_for_ever() -> None:
    gpu, cpu = Market("gpu"), Market("cpu")
    gpu.kind = "cuda:h100"
    sized = Sized(gpu, cpu, gpu={"max": 4})
    sized.submit("j", max=4)
    sized.run_s(120)
    assert len(gpu.living) == 4
    for node in list(gpu.living):
        gpu.preempt(node)
    gpu.kind = "cuda:a100"
    sized.run_s(1200)
    assert sized.job("j").device_kind == "cuda:h100"
    gpu_grows = len(grows(gpu))
    sized.run_s(6000)
    assert len(grows(gpu)) == gpu_grows


def test_m43_the_number_of_calls_does_not_depend_on_the_number_of_jobs() -> None:
    def reads(num_jobs: int) -> int:
        spot = Market("spot")
        sized = Sized(spot)
        for number in range(num_jobs):
            sized.submit(f"j{number}", max=2)
        sized.run_s(600)
        return spot.num_reads

    assert reads(1) == reads(20)


def test_a_job_that_waits_can_say_why_the_pools_do_not_deliver() -> None:
    spot, later = Market("spot", stock=0), Market("later", stock=0)
    sized = Sized(spot, later, later={"max": 2})
    sized.submit("j", max=4)
    sized.run_s(40)
    books = Books(sized.settings)
    books.memory = sized.memory
    words = books.shortage(sized.now_s, sized.state.nodes)
    assert "pool spot: asked for 4, has 0: InsufficientInstanceCapacity, next try in " in words
    assert books.pool_of("spot-1") == ""
    spot.stock = later.stock = 4
    sized.run_s(300)
    books.memory = sized.memory
    assert books.shortage(sized.now_s, sized.state.nodes) == ""
    assert "pool spot: the agents of 2 machines have not joined yet; pool later" in books.shortage(
        sized.now_s, known=()
    )
    assert books.pool_of(sized.ready()[0]) in {"spot", "later"}


def test_the_view_of_a_pool_has_its_machines_by_phase_and_its_waits() -> None:
    spot = Market("spot", stock=2, price=0.5)
    sized = Sized(spot)
    sized.submit("j", max=4)
    sized.run_s(40)
    (view,) = pool_views(sized.memory, sized.settings, sized.now_s)
    assert (view.running + view.starting, view.stopped, view.price, view.max) == (2, 0, 0.5, 16)
    assert 0 < view.retry_in_s <= 60
    assert view.read_ago_s == 0.0
    never = pool_views(Sized(spot).memory, sized.settings, sized.now_s)[0]
    assert (never.read_ago_s, never.retry_in_s, never.price) == (-1.0, -1.0, -1.0)


def test_nodes_get_the_pool_and_price_that_its_provider_tells_and_only_news_are_told() -> None:
    spot = Market("spot", price=0.5)
    sized = Sized(spot)
    sized.submit("j", max=2)
    sized.run_s(120)
    ready = [sized.node(name) for name in sized.ready()]
    assert {(node.pool, node.price_per_hour) for node in ready} == {("spot", 0.5)}
    told = [event for event in sized.journal if isinstance(event, NodesPlaced)]
    spot.price = 0.501
    sized.run_s(60)
    assert [event for event in sized.journal if isinstance(event, NodesPlaced)] == told
    spot.price = 0.6
    sized.run_s(60)
    assert {sized.node(name).price_per_hour for name in sized.ready()} == {0.6}
