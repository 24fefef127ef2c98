"""When a node that nobody hears is lost before its lease ends: all combinations of who hears what."""

import pytest

from tests.support.core_sim import Sim
from varuna_manager.core import actions as a
from varuna_manager.core import events as e
from varuna_manager.core.phases import JobPhase, NodePhase
from varuna_manager.core.step import replay
from varuna_runtime.spec.generation import Cause

TICK_S = 0.1


class Quiet(Sim):
    """Nodes a, b, c train job j, one rank each; `deaf_to` says of whom the manager hears nothing."""

    def __init__(self) -> None:
        super().__init__()
        for node in "abc":
            self.join(node)
        self.submit("j")
        self.live(2.0)

    def live(self, for_s: float, *, deaf_to: str = "", every_s: float = TICK_S) -> None:
        for number in range(round(for_s / every_s)):
            self.now_s += every_s
            for agent in self.agents.values():
                if number % 3 == 0 and agent.is_reachable and agent.node not in deaf_to:
                    beat = e.BeatSeen(
                        at_s=self.now_s, node=agent.node, incarnation=agent.incarnation, running=()
                    )
                    self.feed(beat)
            self.feed(e.Ticked(at_s=self.now_s))

    def rank_on(self, node: str) -> int:
        run = self.state.jobs["j"].run
        assert run is not None
        return run.plan.ranks_on(node)[0]

    def tell(self, teller: str, silent: str, silent_s: float = 1.0, *, generation: int | None = None) -> None:
        """The rank on `teller` says that it hears nothing of the rank on `silent`."""
        self.feed(
            e.PeerSilent(
                at_s=self.now_s,
                job="j",
                generation=self.state.jobs["j"].generation if generation is None else generation,
                rank=self.rank_on(teller),
                peer=self.rank_on(silent),
                silent_s=silent_s,
            )
        )

    def is_lost(self, node: str) -> bool:
        """Whether its first incarnation is: a fenced agent that is heard joins anew at once."""
        return f"{node}#1" in self.state.fenced


def test_a_node_is_lost_once_neither_the_manager_nor_a_peer_hears_it() -> None:
    sim = Quiet()
    sim.freeze("b")
    sim.live(0.8)
    sim.tell("a", "b")
    assert not sim.is_lost("b")
    sim.live(0.4)
    assert sim.is_lost("b")
    assert sim.job("j").generation == 3
    assert "rank" in sim.node("b").reason
    assert sim.node("b").reason.startswith("silent: its agent not heard for 1 s")


def test_it_does_not_matter_who_notices_first() -> None:
    sim = Quiet()
    sim.freeze("b")
    sim.live(1.4)
    assert not sim.is_lost("b")
    sim.tell("a", "b")
    sim.live(TICK_S)
    assert sim.is_lost("b")


def test_what_only_peers_do_not_hear_is_left_to_its_agent() -> None:
    sim = Quiet()
    sim.tell("a", "b")
    sim.tell("c", "b")
    sim.live(30.0)
    assert not sim.is_lost("b")
    assert sim.job("j").generation == 2


def test_what_only_the_manager_does_not_hear_has_its_lease() -> None:
    sim = Quiet()
    sim.freeze("b")
    sim.live(2.5)
    assert not sim.is_lost("b")
    sim.live(1.0)
    assert sim.is_lost("b")
    assert sim.node("b").reason.startswith("lease ended")


def test_a_peer_that_is_heard_again_is_not_silent() -> None:
    sim = Quiet()
    sim.tell("a", "b")
    sim.tell("a", "b", 0.0)
    sim.live(2.0, deaf_to="b")
    assert not sim.is_lost("b")


def test_one_of_two_who_hears_it_again_does_not_speak_for_the_other() -> None:
    sim = Quiet()
    sim.tell("a", "b")
    sim.tell("c", "b")
    sim.tell("c", "b", 0.0)
    sim.live(1.5, deaf_to="b")
    assert sim.is_lost("b")


def test_a_node_that_the_manager_does_not_hear_accuses_nobody() -> None:
    sim = Quiet()
    sim.tell("b", "c")
    sim.live(1.5, deaf_to="bc")
    assert not sim.is_lost("b")
    assert not sim.is_lost("c")


def test_a_beat_in_time_saves_the_node() -> None:
    sim = Quiet()
    sim.tell("a", "b")
    for _ in range(10):
        sim.live(0.7, deaf_to="b")
        sim.live(TICK_S)
    assert not sim.is_lost("b")


@pytest.mark.parametrize("pause_s", [0.5, 3.0, 3600.0])
def test_a_manager_that_stood_still_suspects_nobody(pause_s: float) -> None:
    sim = Quiet()
    sim.tell("a", "b")
    sim.tell("b", "a")
    sim.now_s += pause_s
    sim.feed(e.Ticked(at_s=sim.now_s))
    sim.live(0.6, deaf_to="ab")
    sim.live(2.0)
    assert not sim.is_lost("a")
    assert not sim.is_lost("b")


def test_a_manager_without_time_to_look_leaves_it_to_the_lease() -> None:
    sim = Quiet()
    sim.freeze("b")
    sim.tell("a", "b")
    sim.live(2.5, every_s=0.5)
    assert not sim.is_lost("b")
    sim.live(1.5, every_s=0.5)
    assert sim.is_lost("b")


def test_a_node_whose_stream_broke_is_lost_early_too() -> None:
    sim = Quiet()
    sim.disconnect("b")
    sim.tell("a", "b")
    sim.live(1.2)
    assert sim.is_lost("b")


def test_a_restarted_manager_waits_for_the_nodes_it_has_not_seen() -> None:
    sim = Quiet()
    sim.restart()
    sim.agents["a"].is_connected = sim.agents["c"].is_connected = True
    sim.feed(sim._hello(sim.agents["a"]), sim._hello(sim.agents["c"]))
    sim.tell("a", "b")
    sim.live(5.0)
    assert sim.node("b").phase is NodePhase.DISCONNECTED


def test_what_an_older_generation_did_not_hear_says_nothing() -> None:
    sim = Quiet()
    sim.tell("a", "b", generation=1)
    sim.live(1.5, deaf_to="b")
    assert not sim.is_lost("b")


def test_a_new_generation_begins_without_suspicion() -> None:
    sim = Quiet()
    sim.tell("a", "b")
    sim.live(0.3)
    sim.fail("j", 0, cause=Cause.WORKER_CRASH)
    assert sim.job("j").generation == 3
    sim.live(1.5, deaf_to="b")
    assert not sim.is_lost("b")


def test_a_node_that_thaws_is_fenced_and_joins_anew() -> None:
    sim = Quiet()
    old = sim.agents["b"].incarnation
    sim.freeze("b")
    sim.tell("a", "b")
    sim.live(1.5)
    sim.thaw("b")
    assert [fence.incarnation for fence in sim.all_of(a.FenceNode)] == [old]  # type: ignore[union-attr]
    assert sim.agents["b"].incarnation != old
    assert sim.node("b").phase is NodePhase.READY
    assert sim.job("j").phase is JobPhase.RUNNING


def test_a_node_frozen_again_and_again_costs_one_morph_each_time_it_is_lost() -> None:
    sim = Quiet()
    for _ in range(3):
        sim.live(20.0)
        before = sim.job("j").morphs
        sim.freeze("b")
        sim.tell("a", "b")
        sim.live(1.2)
        sim.thaw("b")
        assert sim.job("j").morphs == before + 1


def test_the_journal_alone_gives_the_same_state() -> None:
    sim = Quiet()
    sim.freeze("b")
    sim.tell("a", "b")
    sim.live(1.5)
    assert sim.is_lost("b")
    assert replay(sim.journal, sim.config) == sim.state.durable()
