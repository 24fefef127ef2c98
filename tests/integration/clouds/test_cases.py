"""Failures that users of such systems met, on one installation that the tests share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.clouds.e2e import Installation, Truth, on_aws
from tests.support.clouds.fault_proxy import Rule, aws_error
from tests.support.clouds.market import Market
from tests.support.clouds.sites import AwsSite

pytestmark = pytest.mark.cases
Job = Callable[..., Path]
READS = "Describe(AutoScalingGroups|Instances)"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with on_aws(tmp_path_factory.mktemp("aws"), sizing={"boot_timeout_s": 15.0}) as made:
        yield made


@pytest.fixture
def here(installed: Installation) -> Iterator[Installation]:
    """The installation with nothing running, before and after the test."""
    installed.wait_quiet()
    yield installed
    market(installed).clear()
    installed.site.lend(None)
    installed.bridge.boot_s = 0.0
    installed.wait_quiet()


def market(here: Installation) -> Market:
    assert isinstance(here.site, AwsSite)
    return here.site.market


def nodes(least: int, most: int) -> str:
    return f"{{min: {least}, max: {most}}}"


def succeeds(here: Installation, job: str, truth: Truth) -> None:
    assert here.wait_over(job).weights_sha256 == truth.weights_sha256, here.story(job)


@pytest.mark.timeout(600)
def test_m7_m8_a_cancel_while_machines_boot_ends_them_and_a_lost_answer_doubles_none(
    here: Installation, tmp_path: Path, tiny: Job
) -> None:
    here.bridge.boot_s = 3600.0
    market(here).add(Rule(operation="SetDesiredCapacity", loses=True, times=1))
    job = here.submit(tiny(tmp_path / "job", nodes=nodes(1, 3)))
    here.eventually(lambda: len(here.bridge.living()) == 3, "three machines")
    here.cli.run("cancel", job)
    here.wait_quiet()
    assert here.status(job).state == "CANCELLED"
    assert here.told("node-joined") == []


@pytest.mark.timeout(600)
def test_t32_a_machine_evicted_before_its_agent_joined_is_replaced(
    here: Installation, tmp_path: Path, tiny: Job, tiny_truth: Truth
) -> None:
    here.bridge.boot_s = 3600.0
    job = here.submit(tiny(tmp_path / "job", nodes=nodes(1, 1)))
    here.eventually(here.bridge.living, "a machine boots")
    (victim,) = here.bridge.living()
    here.bridge.boot_s = 0.0
    here.site.reclaim(victim)
    succeeds(here, job, tiny_truth)
    assert victim not in here.nodes()


@pytest.mark.timeout(600)
def test_t7_m22_a_job_that_loses_its_last_machine_parks_says_why_and_resumes(
    here: Installation, tmp_path: Path, tiny: Job, tiny_truth: Truth
) -> None:
    job = here.submit(tiny(tmp_path / "job", nodes=nodes(1, 1)))
    here.wait(job, lambda s: s.step > 12)
    (victim,) = here.working(job)
    here.site.lend(0)
    here.site.reclaim(victim)
    parked = here.wait(job, lambda s: s.state == "PARKED")
    assert "PREEMPTED" in parked.reason
    assert victim in parked.reason
    here.site.lend(None)
    succeeds(here, job, tiny_truth)


@pytest.mark.timeout(600)
def test_m11_m27_machines_that_run_and_do_nothing_are_ended_and_replaced(
    here: Installation, tmp_path: Path, tiny: Job
) -> None:
    """One never joins; the processes of another end, and the cloud goes on to say that it runs."""
    here.bridge.num_duds = 1
    job = here.submit(tiny(tmp_path / "job", nodes=nodes(1, 2)), pause_s=0.5)
    before = here.wait(job, lambda s: s.nodes == 2 and s.step > 0)
    (dud,) = here.bridge.duds
    assert dud not in here.site.billed()
    zombie = here.working(job)[-1]
    here.bridge[zombie].kill_processes()
    here.wait(job, lambda s: s.generation > before.generation and s.step > before.step)
    here.eventually(lambda: zombie not in here.site.billed(), "it is ended")
    here.eventually(lambda: len(here.ready()) == 2, "it is replaced")
    here.cli.run("cancel", job)


@pytest.mark.timeout(600)
def test_m3_a_job_that_ended_while_no_manager_listened_buys_no_machine_afterwards(
    here: Installation, tmp_path: Path, tiny: Job, tiny_truth: Truth
) -> None:
    """The machines are gone as well when the manager is back, and there are none to do the end again."""
    job = here.submit(tiny(tmp_path / "job", nodes=nodes(1, 2)))
    here.wait(job, lambda s: s.step > 3)
    here.kill_manager()
    machines = here.bridge.living()
    here.speed_up()
    here.eventually_alone(lambda: has_ended(here, job), "the job ends")
    here.site.lend(0)
    for machine in machines:
        here.site.reclaim(machine)
    here.eventually_alone(lambda: not here.bridge.living(), "the machines are gone")
    here.start_manager()
    succeeds(here, job, tiny_truth)
    here.wait_quiet()


@pytest.mark.timeout(600)
def test_m18_a_network_that_was_away_leaves_the_same_machines_and_no_shortage(
    here: Installation, tmp_path: Path, tiny: Job, tiny_truth: Truth
) -> None:
    job = here.submit(tiny(tmp_path / "job", nodes=nodes(1, 2)), pause_s=0.3)
    here.wait(job, lambda s: s.nodes == 2 and s.step > 3)
    machines = here.bridge.living()
    short = len(here.told("pool-short"))
    here.relay.cut()
    here.eventually(lambda: all(here.nodes()[m].state == "LOST" for m in machines), "they are lost")
    here.relay.mend()
    here.eventually(lambda: sorted(here.ready()) == sorted(machines), "the same machines are back")
    succeeds(here, job, tiny_truth)
    assert here.bridge.seen[-2:] == machines
    assert len(here.told("pool-short")) == short


@pytest.mark.timeout(600)
def test_t46_m31_a_manager_that_cannot_read_the_cloud_writes_nothing_and_adopts_the_job(
    here: Installation, tmp_path: Path, tiny: Job, tiny_truth: Truth
) -> None:
    job = here.submit(tiny(tmp_path / "job", nodes=nodes(1, 2)), pause_s=0.3)
    before = here.wait(job, lambda s: s.nodes == 2 and s.step > 3)
    machines = sorted(here.bridge.living())
    here.kill_manager()
    market(here).add(aws_error(READS, "Throttling", "Rate exceeded", status=429))
    market(here).forget_counts()
    here.start_manager()
    here.wait(job, lambda s: s.step > before.step)
    here.eventually(lambda: here.told("pool-trouble"), "the trouble is told")
    calls = here.calls()
    assert not [name for name in calls if not name.startswith(("Describe", "Get", "List", "GET"))], calls
    assert sorted(here.bridge.living()) == machines
    assert here.status(job).generation == before.generation
    market(here).heal()
    succeeds(here, job, tiny_truth)


@pytest.mark.timeout(600)
def test_m9_a_machine_whose_end_was_refused_stays_on_the_books_until_it_came(
    here: Installation, tmp_path: Path, tiny: Job, tiny_truth: Truth
) -> None:
    end = "TerminateInstanceInAutoScalingGroup"
    market(here).add(aws_error(end, "ScalingActivityInProgress", "try again", times=2))
    job = here.submit(tiny(tmp_path / "job", nodes=nodes(1, 1)))
    succeeds(here, job, tiny_truth)
    here.wait_quiet()
    assert here.calls()[end] >= 3


@pytest.mark.timeout(600)
def test_m16_m45_a_machine_with_our_tag_that_belongs_to_no_group_is_ended(here: Installation) -> None:
    assert isinstance(here.site, AwsSite)
    here.site.group.run_stray()
    assert here.site.billed()
    here.wait_quiet()


@pytest.mark.timeout(600)
def test_m44_a_smaller_demand_ends_idle_machines_and_no_other(
    here: Installation, tmp_path: Path, tiny: Job, tiny_truth: Truth
) -> None:
    large = here.submit(tiny(tmp_path / "large", nodes=nodes(1, 2)))
    small = here.submit(tiny(tmp_path / "small", nodes=nodes(1, 1)))
    here.wait(large, lambda s: s.step > 0 and s.nodes == 2)
    here.wait_over(large)
    here.wait(small, lambda s: s.step > 0)
    (busy,) = here.working(small)
    here.eventually(lambda: here.site.billed() == [busy], "the idle machine is ended")
    assert here.site.desired() == 1
    succeeds(here, small, tiny_truth)
    assert (here.status(small).morphs, here.status(small).replayed_steps) == (0, 0)


@pytest.mark.timeout(600)
def test_m43_the_calls_for_one_reading_are_the_same_with_many_jobs(
    here: Installation, tmp_path: Path, tiny: Job
) -> None:
    jobs = [here.submit(tiny(tmp_path / "first", nodes=nodes(1, 1)))]
    here.wait(jobs[0], lambda s: s.step > 0)
    alone = calls_of_a_reading(here)
    jobs += [here.submit(tiny(tmp_path / f"job-{i}", nodes=nodes(1, 1))) for i in range(3)]
    assert calls_of_a_reading(here) == alone
    for job in reversed(jobs):  # the first may have come to its end meanwhile
        here.cli.run("cancel", job, check=False)
    for job in jobs:
        here.wait(job, lambda s: s.is_over)


def calls_of_a_reading(here: Installation, num: int = 6) -> dict[str, float]:
    """Return how often each operation is called for one reading of the pool."""
    market(here).forget_counts()
    reading = "DescribeAutoScalingGroups"
    here.eventually(lambda: here.calls()[reading] >= num, f"{num} readings")
    calls = dict(here.calls())
    return {name: round(calls[name] / calls[reading]) for name in calls}


def has_ended(here: Installation, job: str) -> bool:
    """Whether the job's last word is in the store."""
    assert isinstance(here.site, AwsSite)
    stored = here.site.group.moto.client("s3").list_objects_v2(Bucket="varuna-e2e")
    return any(item["Key"].endswith(f"{job}/ending.json") for item in stored["Contents"])
