"""What is told of pools, and of machines that are there anyway: who starts their nodes, what they cost."""

import pytest

from tests.support.sizing_market import Market, Sized
from varuna_manager.cloud.provider import Trouble
from varuna_manager.pool_settings import LocalPool, Sizing, SshHost, StaticPool
from varuna_manager.sizing.decide import outcome
from varuna_manager.sizing.decisions import Failed, GiveUp
from varuna_manager.sizing.memory import Memory
from varuna_manager.sizing.settings import settings
from varuna_manager.sizing.status import pool_views


def test_a_pool_that_is_not_sized_says_who_starts_its_nodes() -> None:
    host = SshHost(host="h", node="n")
    pools = (
        LocalPool(name="a"),
        LocalPool(name="b", sized=True),
        StaticPool(name="c", provider="static"),
        StaticPool(name="d", provider="static", hosts=(host,)),
    )
    reasons = [view.reason for view in pool_views(Memory(), settings(pools, Sizing()), 0.0)]
    assert reasons == [
        "only `varuna up` and `varuna down` start and end its nodes",
        "",
        "its machines dial in by themselves; `varuna nodes` shows them",
        "",
    ]


def test_a_machine_of_ones_own_may_cost_nothing_beside_a_bound() -> None:
    own, spot = Market("own"), Market("spot", price=2.0)
    sized = Sized(own, spot, sizing=Sizing(max_price=4.0), own={"max": 3, "price": 0.0})
    sized.submit("j", max=8)
    sized.run_s(120)
    assert (len(own.living), len(spot.living)) == (3, 2)


@pytest.mark.parametrize(("trouble", "num_told"), [(Trouble.RETRY, 0), (Trouble.AUTH, 1)])
def test_taking_a_growth_back_too_late_is_no_trouble_worth_a_line(trouble: Trouble, num_told: int) -> None:
    sized = Sized(Market("spot"))
    failed = Failed(trouble=trouble, message="its target is 0 and no longer 2")
    give_up = GiveUp(pool="spot", why="it is short")
    _, decisions = outcome(sized.memory, sized.state, give_up, failed, sized.settings, sized.now_s)
    assert len(decisions) == num_told
