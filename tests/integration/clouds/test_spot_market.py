"""One job through all that a spot market does to it, on each cloud's double, secured as beyond loopback."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.clouds.e2e import MOST, Installation, Truth, on_aws, on_azure
from varuna_manager.client import EventRecord

CLOUDS = {"aws": on_aws, "azure": on_azure}
NOTICE_S = 25.0


@pytest.mark.cases
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cloud", ["aws", "azure"])
def test_a_gpt_trains_through_a_spot_market_to_the_same_bits(
    cloud: str, tmp_path: Path, gpt: Callable[..., Path], gpt_truth: Truth
) -> None:
    with CLOUDS[cloud](tmp_path / cloud, sizing={"idle_release_s": 15.0}) as here:
        assert here.is_quiet()
        job = here.submit(gpt(tmp_path / "job"), pause_s=0.25)
        grows_from_nothing(here, job)
        moves_off_a_node_with_a_notice(here, job)
        survives_an_eviction_without_notice(here, job)
        goes_on_with_what_a_short_market_has(here, job)
        is_adopted_by_the_manager_that_follows_a_killed_one(here, job)
        ends_in_the_same_bits(here, job, gpt_truth)
        here.wait_quiet()
        assert here.told("machine-stuck") == [], here.story(job)


def grows_from_nothing(here: Installation, job: str) -> None:
    here.wait(job, lambda s: s.state == "RUNNING" and s.nodes == MOST)
    assert here.site.desired() == MOST
    assert sorted(here.ready()) == sorted(here.site.running())


def moves_off_a_node_with_a_notice(here: Installation, job: str) -> None:
    """The drain ends before the announced end, and nothing is computed twice."""
    before = here.wait(job, lambda s: s.state == "RUNNING" and s.step > 3)
    victim = here.working(job)[0]
    here.site.reclaim(victim, NOTICE_S)
    here.eventually(lambda: here.told("node-notice", victim), "the notice is told")
    after = here.wait(job, lambda s: s.state == "RUNNING" and victim not in here.working(job))
    assert after.replayed_steps == before.replayed_steps, here.story(job)
    (notice,) = here.told("node-notice", victim)
    drained = next(e for e in here.events(job) if e.what == "drained" and e.id > notice.id)
    here.eventually(lambda: gone(here, victim), f"{victim} is taken back")
    assert drained.at < gone(here, victim)[0].at


def survives_an_eviction_without_notice(here: Installation, job: str) -> None:
    """A node that hosts no rank 0 goes: it is seen, the steps done again are told, the pool fills up."""
    here.wait(job, lambda s: s.state == "RUNNING" and s.nodes > 1)
    victim = here.working(job)[-1]
    here.site.reclaim(victim)
    here.eventually(lambda: gone(here, victim), f"{victim} is seen to be gone")
    here.wait(job, lambda s: s.state == "RUNNING" and victim not in here.working(job))
    assert here.status(job).replayed_steps >= num_replayed(here, job)
    here.eventually(lambda: len(here.ready()) == MOST, "a replacement joins")


def goes_on_with_what_a_short_market_has(here: Installation, job: str) -> None:
    here.wait(job, lambda s: s.state == "RUNNING" and s.nodes > 2)
    here.site.lend(2)
    victims = here.working(job)[-2:]
    for victim in victims:
        here.site.reclaim(victim)
    here.eventually(lambda: all(gone(here, v) for v in victims), "the evictions are seen")
    before = here.wait(job, lambda s: s.state == "RUNNING" and not {*victims} & {*here.working(job)})
    here.wait(job, lambda s: s.step > before.step)
    here.eventually(lambda: here.told("pool-short"), "the shortage is told")
    here.site.lend(None)
    here.eventually(lambda: len(here.ready()) == MOST, "the market has machines again")


def is_adopted_by_the_manager_that_follows_a_killed_one(here: Installation, job: str) -> None:
    here.wait(job, lambda s: s.state == "RUNNING")
    here.kill_manager()
    here.start_manager()
    before = here.status(job)
    here.wait(job, lambda s: s.step > before.step)


def ends_in_the_same_bits(here: Installation, job: str, truth: Truth) -> None:
    status = here.wait_over(job)
    assert status.weights_sha256 == truth.weights_sha256, here.story(job)
    losses: dict[int, set[str]] = {}
    for record in here.client().steps(job):
        losses.setdefault(record.step, set()).add(record.loss_hex)
    assert [losses[step] for step in sorted(losses)] == [{loss} for loss in truth.losses], here.story(job)


def gone(here: Installation, node: str) -> list[EventRecord]:
    return here.told("node-left", node) or here.told("node-lost", node)


def num_replayed(here: Installation, job: str) -> int:
    records = here.client().steps(job)
    return len(records) - len({r.step for r in records})
