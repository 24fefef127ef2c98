"""Sources of notices against a fake metadata service that breaks in every way."""

import asyncio
import contextlib
import json
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from tests.support.clouds.metadata_facts import Machine
from tests.support.clouds.metadata_server import Break, MetadataServer
from varuna_runtime.agent.clouds import Cloud
from varuna_runtime.agent.identity import Identity, identify, node_and_host
from varuna_runtime.agent.metadata import AwsMetadata
from varuna_runtime.agent.notices import Cancelled, Change, HealthChanged, Hint, Notice, NoticeSource
from varuna_runtime.agent.notices.aws import AwsNotices
from varuna_runtime.agent.notices.azure import EVENTS, AzureNotices
from varuna_runtime.agent.notices.gcp import GcpNotices
from varuna_runtime.spec.errors import MetadataUnavailable

ROUNDING = 1e-6  # of seconds that are added to a clock and taken off it again

FAST_S = 0.05
SPOT = "/latest/meta-data/spot/instance-action"
TOKEN = "/latest/api/token"
DOCUMENT = EVENTS.partition("?")[0]
BREAKS: list[Break | int] = [401, 404, 500, 302, *Break]


@pytest.fixture
def service() -> Iterator[MetadataServer]:
    with MetadataServer(Machine(node="i-0abc", host="10.1.2.3", kind="g5.xlarge")) as running:
        yield running


class Heard:
    """What a source has said so far."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    @property
    def state(self) -> str:
        found = [change.state for change in self.changes if isinstance(change, HealthChanged)]
        return found[-1] if found else "starting"

    @property
    def news(self) -> list[Change]:
        return [change for change in self.changes if not isinstance(change, HealthChanged)]

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition)


async def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


@asynccontextmanager
async def listening(source: NoticeSource) -> AsyncIterator[Heard]:
    """Collect what the source says; an exception of the source fails the test."""
    heard = Heard()

    async def collect() -> None:
        async with aclosing(source.changes()) as changes:
            async for change in changes:
                heard.changes.append(change)

    task = asyncio.create_task(collect())
    try:
        yield heard
        assert not task.done(), task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def aws(service: MetadataServer) -> AwsNotices:
    return AwsNotices(service.url, every_s=FAST_S)


def azure(service: MetadataServer) -> AzureNotices:
    return AzureNotices(service.url, every_s=FAST_S)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


# --- every source survives everything ------------------------------------------------------------------


@pytest.mark.parametrize("how", BREAKS, ids=str)
def test_t33_aws_notices_survive_whatever_the_service_does(service: MetadataServer, how: Break | int) -> None:
    async def test() -> None:
        service.break_(how, TOKEN)
        async with listening(aws(service)) as heard:
            await heard.until(lambda: heard.state.startswith("unavailable, because "))
            service.mend()
            await heard.until(lambda: heard.state == "aws")
            service.interrupt(time.time() + 100.0)
            await heard.until(lambda: bool(heard.news))
        assert [type(change) for change in heard.news] == [Notice]

    run(test())


@pytest.mark.parametrize("how", [503, Break.GARBAGE, Break.RESET], ids=str)
def test_t33_an_outage_neither_cancels_nor_repeats_a_notice(
    service: MetadataServer, how: Break | int
) -> None:
    async def test() -> None:
        service.interrupt(time.time() + 100.0)
        async with listening(aws(service)) as heard:
            await heard.until(lambda: bool(heard.news))
            service.break_(how, SPOT)
            await heard.until(lambda: heard.state.startswith("unavailable"))
            service.mend()
            await heard.until(lambda: heard.state == "aws")
            num_asked = service.count(SPOT)
            await heard.until(lambda: service.count(SPOT) > num_asked + 2)
        assert len(heard.news) == 1

    run(test())


@pytest.mark.parametrize("how", [400, 404, 500, Break.GARBAGE, Break.RESET, Break.TRUNCATED], ids=str)
@pytest.mark.parametrize(("name", "path"), [("azure", "/metadata"), ("gcp", "/computeMetadata")])
def test_other_sources_survive_too(service: MetadataServer, name: str, path: str, how: Break | int) -> None:
    async def test() -> None:
        source = azure(service) if name == "azure" else GcpNotices(service.url, every_s=FAST_S)
        service.break_(how, path)
        async with listening(source) as heard:
            await heard.until(lambda: heard.state.startswith("unavailable, because "))
            service.mend()
            await heard.until(lambda: heard.state == name)
            service.announce("Preempt", 110.0)
            service.preempt()
            await heard.until(lambda: bool(heard.news))
        assert isinstance(heard.news[0], Notice)
        assert 0.0 < heard.news[0].seconds_left <= 110.0 + ROUNDING

    run(test())


# --- AWS -----------------------------------------------------------------------------------------------


def test_m23_tokens_that_become_invalid_hide_no_notice(service: MetadataServer) -> None:
    async def test() -> None:
        async with listening(aws(service)) as heard:
            await heard.until(lambda: heard.state == "aws")
            service.invalidate_tokens()
            service.interrupt(time.time() + 100.0)
            await heard.until(lambda: bool(heard.news))
        assert heard.state == "aws"
        assert service.count(TOKEN, "PUT") >= 2

    run(test())


def test_m23_a_token_is_renewed_before_it_expires(service: MetadataServer) -> None:
    service.facts.token_ttl_s = 2.0

    async def test() -> None:
        async with listening(aws(service)) as heard:
            await heard.until(lambda: service.count(TOKEN, "PUT") >= 2)
            num_asked = service.count(SPOT)
            await heard.until(lambda: service.count(SPOT) > num_asked + 2)
        assert heard.state == "aws"

    run(test())


def test_one_renewal_at_a_time(service: MetadataServer) -> None:
    async def test() -> None:
        metadata = AwsMetadata(service.url, within_s=60.0)
        try:
            for num_tokens in (1, 2, 3):
                answers = await asyncio.gather(*(metadata.text("instance-id") for _ in range(8)))
                assert answers == ["i-0abc"] * 8
                assert service.count(TOKEN, "PUT") == num_tokens
                service.invalidate_tokens()
        finally:
            await metadata.close()

    run(test())


def test_a_spot_interruption_from_hint_to_end(service: MetadataServer) -> None:
    async def test() -> None:
        async with listening(aws(service)) as heard:
            service.recommend()
            await heard.until(lambda: len(heard.news) == 1)
            service.set_lifecycle("Terminated")
            await heard.until(lambda: len(heard.news) == 2)
            service.interrupt(time.time() + 20.0)
            await heard.until(lambda: len(heard.news) == 3)
            service.calm()
            await heard.until(lambda: len(heard.news) == 4)
        hint, ending, spot, cancelled = heard.news
        assert isinstance(hint, Hint)
        assert isinstance(ending, Notice)
        assert isinstance(spot, Notice)
        assert spot.seconds_left <= 20.0 + ROUNDING < ending.seconds_left
        assert isinstance(cancelled, Cancelled)

    run(test())


def test_a_past_time_that_stayed_is_no_notice(service: MetadataServer) -> None:
    async def test() -> None:
        service.interrupt(time.time() - 4000.0)
        async with listening(aws(service)) as heard:
            await heard.until(lambda: service.count(SPOT) > 3)
            assert heard.news == []
            service.interrupt(time.time() + 90.0)
            await heard.until(lambda: bool(heard.news))
        assert [type(change) for change in heard.news] == [Notice]

    run(test())


@pytest.mark.parametrize("offset_s", [-7200.0, 7200.0])
def test_m38_the_deadline_is_on_the_clouds_clock(service: MetadataServer, offset_s: float) -> None:
    service.facts.clock_offset_s = offset_s

    async def test() -> None:
        service.interrupt(time.time() + 110.0)
        service.announce("Preempt", 110.0)
        async with listening(aws(service)) as spot, listening(azure(service)) as preempt:
            await until(lambda: bool(spot.news and preempt.news))
        for change in (spot.news[0], preempt.news[0]):
            assert isinstance(change, Notice)
            assert 0.0 < change.seconds_left <= 110.0 + ROUNDING

    run(test())


def test_a_path_that_fails_hides_no_other(service: MetadataServer) -> None:
    async def test() -> None:
        service.break_(Break.GARBAGE, "/latest/meta-data/events")
        service.break_(500, "/latest/meta-data/autoscaling")
        async with listening(aws(service)) as heard:
            await heard.until(lambda: heard.state == "aws")
            service.interrupt(time.time() + 100.0)
            await heard.until(lambda: bool(heard.news))
        assert heard.state == "aws"

    run(test())


# --- Azure ---------------------------------------------------------------------------------------------


def test_t34_only_our_own_events_count_and_an_empty_list_is_none(service: MetadataServer) -> None:
    async def test() -> None:
        async with listening(azure(service)) as heard:
            service.announce("Preempt", 30.0, resources=["i-0abcd", "i-0"])
            asked = service.count(DOCUMENT)
            await heard.until(lambda: service.count(DOCUMENT) > asked + 3)
            assert heard.news == []
            event = service.announce("Preempt", 110.0, resources=["I-0ABC"])
            await heard.until(lambda: len(heard.news) == 1)
            service.withdraw(event)
            await heard.until(lambda: len(heard.news) == 2)
        assert isinstance(heard.news[0], Notice)
        assert 0.0 < heard.news[0].seconds_left <= 110.0 + ROUNDING
        assert isinstance(heard.news[1], Cancelled)

    run(test())


def test_an_event_that_started_is_due_and_its_vanishing_takes_nothing_back(service: MetadataServer) -> None:
    async def test() -> None:
        event = service.announce("Redeploy", 600.0)
        async with listening(azure(service)) as heard:
            await heard.until(lambda: len(heard.news) == 1)
            service.start_event(event)
            await heard.until(lambda: len(heard.news) == 2)
            service.withdraw(event)
            asked = service.count(DOCUMENT)
            await heard.until(lambda: service.count(DOCUMENT) > asked + 3)
        assert [change.seconds_left for change in heard.news if isinstance(change, Notice)][1:] == [0.0]
        assert len(heard.news) == 2

    run(test())


def test_a_service_that_is_being_switched_on_is_starting_not_broken(service: MetadataServer) -> None:
    async def test() -> None:
        service.enabled.clear()
        async with listening(azure(service)) as heard:
            await heard.until(lambda: service.count("/metadata/instance/compute") == 1)
            assert heard.state == "starting"
            service.enabled.set()
            await heard.until(lambda: heard.state == "azure")
        assert [type(change) for change in heard.changes] == [HealthChanged]

    run(test())


def acknowledging(service: MetadataServer, then: Callable[[AzureNotices, Notice], Awaitable[None]]) -> None:
    async def test() -> None:
        source = azure(service)
        async with listening(source) as heard:
            await heard.until(lambda: bool(heard.news))
            notice = heard.news[0]
            assert isinstance(notice, Notice)
            await then(source, notice)

    run(test())


def test_a_failing_acknowledgement_is_repeated(service: MetadataServer) -> None:
    event = service.announce("Preempt", 30.0)

    async def then(source: AzureNotices, notice: Notice) -> None:
        service.break_(500, DOCUMENT, "POST")
        task = asyncio.create_task(source.acknowledge(notice))
        await until(lambda: service.count(DOCUMENT, "POST") >= 2)
        service.mend()
        await task

    acknowledging(service, then)
    assert service.take_acknowledged() == [event]


def test_an_event_of_several_machines_is_never_acknowledged(service: MetadataServer) -> None:
    service.announce("Preempt", 30.0, resources=["i-0abc", "i-other"])

    async def then(source: AzureNotices, notice: Notice) -> None:
        await source.acknowledge(notice)

    acknowledging(service, then)
    assert service.count(DOCUMENT, "POST") == 0


def test_an_acknowledgement_ends_with_its_event(service: MetadataServer) -> None:
    event = service.announce("Preempt", 30.0)

    async def then(source: AzureNotices, notice: Notice) -> None:
        service.break_(500, DOCUMENT, "POST")
        task = asyncio.create_task(source.acknowledge(notice))
        await until(lambda: service.count(DOCUMENT, "POST") >= 1)
        service.withdraw(event)
        await task

    acknowledging(service, then)
    assert service.take_acknowledged() == []


# --- GCP -----------------------------------------------------------------------------------------------


def test_a_preemption_arrives_by_a_question_that_waited(service: MetadataServer) -> None:
    async def test() -> None:
        async with listening(GcpNotices(service.url, every_s=FAST_S)) as heard:
            waiting = "/computeMetadata/v1/instance/preempted"
            await heard.until(lambda: service.count(waiting) == 1)
            service.set_maintenance_event("MIGRATE_ON_HOST_MAINTENANCE")
            await heard.until(lambda: len(heard.news) == 1)
            service.preempt()
            await heard.until(lambda: len(heard.news) == 2)
            service.preempt(False)
            await heard.until(lambda: len(heard.news) == 3)
        assert [type(change) for change in heard.news] == [Hint, Notice, Cancelled]
        assert any("wait_for_change=true" in path for _, path, _ in service.requests)

    run(test())


def test_maintenance_that_fails_hides_no_preemption(service: MetadataServer) -> None:
    async def test() -> None:
        service.break_(500, "/computeMetadata/v1/instance/maintenance-event")
        async with listening(GcpNotices(service.url, every_s=FAST_S)) as heard:
            await heard.until(lambda: heard.state == "gcp")
            service.preempt()
            await heard.until(lambda: bool(heard.news))
        assert [type(change) for change in heard.changes] == [HealthChanged, Notice]

    run(test())


# --- identity ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cloud", "zone"), [(Cloud.AWS, "us-east-1a"), (Cloud.AZURE, "a"), (Cloud.GCP, "us-central1-a")]
)
def test_a_machine_knows_who_it_is(service: MetadataServer, cloud: Cloud, zone: str) -> None:
    assert identify(cloud, service.url, 30.0) == Identity(
        node="i-0abc", host="10.1.2.3", zone=zone, kind="g5.xlarge", market="spot"
    )


@pytest.mark.parametrize("how", [401, Break.GARBAGE, Break.NEVER], ids=str)
@pytest.mark.parametrize("cloud", Cloud)
def test_a_machine_that_cannot_know_says_why(service: MetadataServer, cloud: Cloud, how: Break | int) -> None:
    service.break_(how)
    with pytest.raises(MetadataUnavailable, match=f"metadata service of {cloud} .* give --node and --host"):
        identify(cloud, service.url, 0.3)


def test_words_on_the_command_line_come_first(service: MetadataServer) -> None:
    service.break_(500)
    assert node_and_host(Cloud.AWS, service.url, "n1", "10.0.0.9") == ("n1", "10.0.0.9")
    assert service.requests == []
    assert node_and_host(Cloud.AWS, service.url, "n1", "") == ("n1", "")
    service.mend()
    assert node_and_host(Cloud.AWS, service.url, "", "10.0.0.9") == ("i-0abc", "10.0.0.9")


# --- the fake itself -----------------------------------------------------------------------------------


def test_the_fake_is_also_told_by_json(service: MetadataServer) -> None:
    def post(verb: str, **body: object) -> object:
        request = urllib.request.Request(
            f"{service.url}/ctl/{verb}", json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    post("identify", node="i-1")
    event = post("announce", kind="Preempt", in_s=30.0)
    assert service.facts.machine.node == "i-1"
    assert [found["EventId"] for found in service.facts.events()] == [event]


def test_the_sdk_of_aws_takes_its_credentials_from_the_fake(service: MetadataServer) -> None:
    utils = pytest.importorskip("botocore.utils")
    config = {"ec2_metadata_service_endpoint": service.url + "/"}
    found = utils.InstanceMetadataFetcher(config=config).retrieve_iam_role_credentials()
    assert (found["role_name"], found["access_key"]) == ("varuna-node", "AKIATESTONLY")
