"""A node speaks about its own part of a job and about nothing else."""

import pytest

from tests.support.core_sim import Sim
from varuna_manager.rpc import standing


@pytest.fixture
def sim() -> Sim:
    """Job j runs as rank 0 on a; b has no part in it."""
    made = Sim()
    made.join("a")
    made.submit("j", max=1)
    made.join("b")
    return made


def test_a_node_reports_on_its_own_ranks_only(sim: Sim) -> None:
    now = sim.job("j").generation
    owner, other = "a", "b"
    assert standing.may_report(sim.state, owner, job="j", generation=now, rank=0)
    assert standing.may_report(sim.state, owner, job="j", generation=now)
    assert standing.may_report(sim.state, owner, job="j", generation=now - 1, rank=0)
    for node, job, generation, rank in (
        (owner, "j", now, 1),
        (owner, "j", now, -1),
        (owner, "j", now + 1, 0),
        (owner, "j", -1, 0),
        (owner, "k", now, 0),
        (other, "j", now, 0),
        (other, "j", now, None),
        (other, "j", now - 1, 0),
    ):
        assert not standing.may_report(sim.state, node, job=job, generation=generation, rank=rank)


def test_a_lost_node_may_still_send_the_last_lines_of_its_logs(sim: Sim) -> None:
    generation = sim.job("j").generation
    assert standing.may_log(sim.state, "a", job="j", generation=generation, rank=0)
    assert standing.may_log(sim.state, "a", job="j", generation=generation, rank=-1)
    assert not standing.may_log(sim.state, "b", job="j", generation=generation, rank=0)
    assert not standing.may_log(sim.state, "b", job="j", generation=generation - 1, rank=0)
    sim.kill("a")
    sim.pass_time(60.0)
    assert sim.node("a").is_gone
    assert standing.may_log(sim.state, "a", job="j", generation=generation, rank=0)
    assert not standing.may_report(sim.state, "a", job="j", generation=generation, rank=0)
