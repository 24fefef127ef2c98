"""Where copies may be, which version ranks go on from, and how long copies are needed."""

from dataclasses import replace

import pytest

from tests.support.core_sim import Sim
from varuna_manager.core import actions as a
from varuna_manager.core import copies, departures
from varuna_manager.core import events as e
from varuna_manager.core.state import Run
from varuna_manager.core.words import What
from varuna_runtime.spec.copies import Version
from varuna_runtime.spec.generation import Cause
from varuna_runtime.spec.job import JobSpec

STORE = Version(step=4, generation=0)
INITIAL = Version(step=0, generation=0)


@pytest.fixture
def sim() -> Sim:
    """Two stages on two nodes, three steps trained and kept."""
    return _pipeline("a", "b")


def _pipeline(*nodes: str, **spec: object) -> Sim:
    sim = Sim()
    sim.has_vaults = sim.has_pipelines = True
    for name in nodes:
        sim.join(name)
    sim.submit("j", **spec)
    sim.train("j", 3)
    return sim


def _run(sim: Sim) -> Run:
    run = sim.job("j").run
    assert run is not None
    return run


def _starting(sim: Sim, *offers: tuple[Version, ...]) -> None:
    """A start of two ranks that say they can load this and no more."""
    sim.hold("prepare")
    sim.fail("j", 0, Cause.WORKER_CRASH)
    _prepare(sim, *offers)


def _prepare(sim: Sim, *offers: tuple[Version, ...]) -> None:
    prepared = [w[2] for w in sim.waiting if isinstance(w[2], e.RankPrepared)]
    sim.waiting.clear()
    for event, offer in zip(prepared, offers, strict=True):
        sim.feed(replace(event, loaded=offer[0], loadable=offer))


def _whys(sim: Sim, what: What) -> list[str]:
    return [each.why for each in sim.actions if isinstance(each, a.Announce) and each.what == what]


def test_ranks_go_on_from_the_newest_version_that_all_can_load(sim: Sim) -> None:
    newer, older = Version(step=3, generation=2), Version(step=2, generation=2)
    _starting(sim, (newer, older, INITIAL), (older, INITIAL))
    assert _run(sim).resume == older
    assert _whys(sim, What.REPLAYED) == []


def test_a_start_without_a_common_version_fails_and_says_what_there_is(sim: Sim) -> None:
    _starting(sim, (Version(step=3, generation=2),), (Version(step=2, generation=2),))
    (why,) = [line for line in _whys(sim, What.RETRY) if "no state" in line]
    assert "rank 0: step 3 of generation 2 in memory; rank 1: step 2 of generation 2 in memory" in why


def test_after_a_start_without_a_common_version_the_copies_are_not_given_up(sim: Sim) -> None:
    """A vault may only have been slow: what it holds is newer than anything the store has."""
    newer = Version(step=5, generation=2)
    _starting(sim, (newer, STORE), (Version(step=2, generation=0),))
    sim.pass_time(10.0)
    assert all(each.vaults for each in sim.all_of(a.StartRanks)[-2:])  # type: ignore[union-attr]
    _prepare(sim, (newer, STORE), (newer, STORE))
    assert _run(sim).resume == newer


def test_a_step_that_one_rank_found_in_the_store_is_durable_and_told_to_all_at_the_next_start(
    sim: Sim,
) -> None:
    _starting(sim, (STORE,), (Version(step=3, generation=2),))
    assert sim.job("j").durable_step == STORE.step
    sim.pass_time(1.0)
    assert {each.resume_step for each in sim.all_of(a.StartRanks)[-2:]} == {STORE.step}  # type: ignore[union-attr]


def test_a_damaged_durable_step_is_gone_behind_after_starts_in_which_ranks_relied_on_it(sim: Sim) -> None:
    newer, damaged, sound = Version(step=9, generation=2), Version(step=8, generation=0), STORE
    _starting(sim, (newer, damaged), (sound,))
    for _ in range(2):
        sim.pass_time(10.0)
        _prepare(sim, (newer, damaged), (sound,))
    sim.pass_time(10.0)
    assert {each.resume_step for each in sim.all_of(a.StartRanks)[-2:]} == {None}  # type: ignore[union-attr]
    _prepare(sim, (newer, sound), (sound,))
    assert _run(sim).resume == sound
    assert sim.job("j").durable_step == sound.step, "else copies of less than the damaged step would not do"


def test_a_step_that_ranks_went_behind_is_durable_again_only_once_it_is_made_anew(sim: Sim) -> None:
    damaged = Version(step=8, generation=0)
    _starting(sim, (damaged, STORE), (STORE,))
    while _run(sim).resume != STORE:
        sim.pass_time(10.0)
        _prepare(sim, (damaged, STORE), (STORE,))
    assert (sim.job("j").durable_step, sim.job("j").passed_over) == (STORE.step, damaged.step)
    for _ in range(3):
        sim.fail("j", 0, Cause.WORKER_CRASH)
        sim.pass_time(10.0)
        _prepare(sim, (damaged, STORE), (STORE,))
        assert _run(sim).resume == STORE, "not one start fails for it again"
        assert sim.job("j").durable_step == STORE.step
    assert sim.job("j").failures[Cause.WORKER_CRASH] >= 3, "and it is no progress"


def test_ranks_do_not_go_back_behind_a_durable_step_that_only_one_of_them_found(sim: Sim) -> None:
    """Whoever told of it was lost with its node; the other rank saw copies, and did not look."""
    older = Version(step=2, generation=0)
    _starting(sim, (STORE, older), (Version(step=3, generation=2), older))
    assert _run(sim).resume is None
    sim.pass_time(1.0)
    assert {each.resume_step for each in sim.all_of(a.StartRanks)[-2:]} == {STORE.step}  # type: ignore[union-attr]
    prepared = [w[2] for w in sim.waiting if isinstance(w[2], e.RankPrepared)]
    for event in prepared:  # all knew of it now; one cannot read it
        sim.feed(replace(event, loaded=older, loadable=(older, STORE)[: 1 + event.rank]))
    assert _run(sim).resume == older


def test_what_a_rank_has_in_memory_is_not_durable(sim: Sim) -> None:
    _starting(sim, (Version(step=3, generation=2), INITIAL), (Version(step=3, generation=2), INITIAL))
    assert (sim.job("j").durable_step, sim.job("j").reached) == (None, 3)


def test_going_on_from_a_newer_step_forgives_failures_and_from_the_same_one_does_not(sim: Sim) -> None:
    sim.fail("j", 0, Cause.WORKER_CRASH)
    assert _run(sim).resume == Version(step=3, generation=2)
    assert sim.job("j").failures == {}
    sim.fail("j", 0, Cause.WORKER_CRASH)
    sim.pass_time(1.0)
    assert sim.job("j").failures == {Cause.WORKER_CRASH: 1}


def test_a_new_process_of_a_node_has_no_copies(sim: Sim) -> None:
    assert set(sim.job("j").holders) == {"a", "b"}
    sim.kill("b")
    sim.join("b")
    assert set(sim.job("j").holders) == {"a"}


def test_a_node_out_of_reach_is_told_that_its_copies_may_go_when_it_is_back() -> None:
    sim = _pipeline("a", "b", "c")
    sim.disconnect("b")
    sim.fail("j", 0, Cause.WORKER_CRASH)
    sim.train("j", 1)
    assert not sim.all_of(a.RetireCopies)
    sim.rejoin("b")
    assert [each.node for each in sim.all_of(a.RetireCopies)] == ["b"]  # type: ignore[union-attr]
    assert "b" not in sim.job("j").holders


def test_a_durable_step_of_a_generation_that_keeps_no_copies_lets_older_ones_go() -> None:
    sim = _pipeline("a", "b", "c")
    sim.disconnect("b")
    sim.fail("j", 0, Cause.WORKER_CRASH)
    generation = _run(sim).number
    sim.rejoin("b")
    assert not sim.all_of(a.RetireCopies)
    sim.durable("j", 4)
    assert [each.node for each in sim.all_of(a.RetireCopies)] == ["b"]  # type: ignore[union-attr]
    assert (sim.job("j").kept_generation, set(sim.job("j").holders)) == (generation, {"a", "c"})


@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_word_to_drop_copies_that_was_lost_on_its_way_is_said_again_when_the_node_is_back(
    *, is_fenced: bool
) -> None:
    sim = _pipeline("a", "b", "c")
    sim.disconnect("b")
    sim.fail("j", 0, Cause.WORKER_CRASH)
    sim.rejoin("b")
    generation = _run(sim).number
    sim.feed(e.GenerationKept(at_s=sim.now_s, job="j", generation=generation, rank=0, step=3))
    assert len(sim.all_of(a.RetireCopies)) == 1
    if is_fenced:
        sim.freeze("b")
        sim.pass_time(60.0)
        sim.thaw("b")
    else:
        sim.disconnect("b")
        sim.rejoin("b")
    told = sim.all_of(a.RetireCopies)
    assert {(each.node, each.generation) for each in told} == {("b", generation)}  # type: ignore[union-attr]
    assert len(told) >= 2


def test_a_late_word_of_an_older_generation_retires_nothing_newer(sim: Sim) -> None:
    first = _run(sim).number
    sim.fail("j", 0, Cause.WORKER_CRASH)
    second = _run(sim).number
    for generation in (second, first):
        sim.feed(e.GenerationKept(at_s=sim.now_s, job="j", generation=generation, rank=0, step=3))
    assert sim.job("j").kept_generation == second
    assert {held.generation for held in sim.job("j").holders["a"]} == {second}


def test_a_node_that_was_out_of_reach_at_the_end_of_a_job_forgets_it_when_it_joins_anew(sim: Sim) -> None:
    sim.freeze("b")
    sim.pass_time(4.0)
    sim.cancel("j")
    assert sim.job("j").is_over
    sim.actions.clear()
    sim.thaw("b")
    assert [each.node for each in sim.all_of(a.ForgetJob)] == ["b"]  # type: ignore[union-attr]


def test_the_machine_of_a_node_is_not_ended_while_a_start_may_need_its_copies(sim: Sim) -> None:
    sim.hold("plan")
    sim.fail("j", 0, Cause.WORKER_CRASH)
    assert not sim.state.is_busy("b")
    sim.feed(e.ReleaseDecided(at_s=sim.now_s, node="b", reason="idle"))
    assert sim.state.ending == {}


def test_a_drain_is_durable_if_the_job_could_not_go_on_after_it() -> None:
    sim = _pipeline("a", "b", min=2)
    sim.drain("a")
    assert [each.persist for each in sim.all_of(a.DrainRanks)] == [True, True]  # type: ignore[union-attr]


def test_a_drain_is_durable_if_nobody_who_stays_holds_some_state() -> None:
    sim = _pipeline("a", "b", "c", "d", "x")
    run = _run(sim)
    job = sim.job("j")
    whole = dict.fromkeys(run.ranks, ())
    assert copies.survive(sim.state, job, run, {"a", "b"})
    assert not copies.survive(sim.state, job, replace(run, buddies=whole), {"a", "c"})


def test_a_share_of_optimizer_state_must_be_with_somebody_who_stays() -> None:
    sim = _pipeline("a", "b", "c", "d", shard_optimizer=True)
    run, job = _run(sim), sim.job("j")
    assert copies.survive(sim.state, job, run, {"a", "b", "c"})
    assert not copies.survive(sim.state, job, replace(run, buddies={}), {"a", "b", "c"})


def test_a_quick_drain_in_memory_says_nothing_of_how_long_saving_takes(sim: Sim) -> None:
    sim.join("c")
    sim.train("j", 1)
    sim.drain("b")
    job = sim.job("j")
    assert (job.kept_drain_s, job.drain_s) == (0.0, None)
    run = _run(sim)
    enough = departures.lead_s(sim.state, job, run)
    sim.state = replace(sim.state, jobs={"j": replace(job, spec=_needing(job.spec, 9))})
    assert departures.lead_s(sim.state, sim.job("j"), run) > enough


def _needing(spec: JobSpec, nodes: int) -> JobSpec:
    return spec.model_copy(update={"nodes": spec.nodes.model_copy(update={"min": nodes})})


def test_without_vaults_every_drain_is_durable_and_nobody_is_named_to_look_at() -> None:
    sim = Sim()
    for name in "abc":
        sim.join(name)
    sim.submit("j")
    sim.train("j", 2)
    sim.drain("c")
    assert all(each.persist for each in sim.all_of(a.DrainRanks))  # type: ignore[union-attr]
    starts = sim.all_of(a.StartRanks)
    assert not any(each.vaults or each.buddies for each in starts)  # type: ignore[union-attr]
