"""Pools of machines that are there anyway: who starts their nodes, and what they cost."""

from tests.support.sizing_market import Market, Sized
from varuna_manager.pool_settings import LocalPool, Sizing, SshHost, StaticPool
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
