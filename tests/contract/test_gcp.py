"""Managed instance groups: every rule of the provider, against a fake that the official client accepts."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.contract.provider_suite import alive, read, running, seen, settled, until
from tests.support.clouds.fake_gcp import EXHAUSTED, PROJECT, FakeGcp, Fault, Group, serving
from tests.support.notes import MemoryNotes
from varuna_manager.cloud.gcp.provider import GcpProvider
from varuna_manager.cloud.gcp.rest import Rest
from varuna_manager.cloud.provider import InstancePhase, Market, PoolReading, Provider, ProviderError, Trouble
from varuna_manager.pool_settings import GcpPool
from varuna_runtime.spec.errors import InvalidInput


class Cloud:
    """A world, one group in it, and providers of that group."""

    def __init__(self, endpoint: str, world: FakeGcp, **place: str) -> None:
        self.endpoint, self.world, self.notes = endpoint, world, MemoryNotes()
        self.group: Group = world.add_group("g", **place)
        fields = {"name": "p", "provider": "gcp", "project": PROJECT, "group": "g", **place}
        self._settings = GcpPool.model_validate(fields)
        self._opened: list[Rest] = []
        self.provider: Provider = self.reopen()

    def reopen(self) -> Provider:
        self._opened.append(Rest(self.endpoint, is_anonymous=True))
        return GcpProvider(self._settings, self._opened[-1], self.notes)

    def close(self) -> None:
        for rest in self._opened:
            rest.close()


@pytest.fixture
def world() -> FakeGcp:
    return FakeGcp()


@pytest.fixture
def endpoint(world: FakeGcp) -> Iterator[str]:
    with serving(world) as served:
        yield served


@pytest.fixture(params=["zone", "region"])
def cloud(request: pytest.FixtureRequest, endpoint: str, world: FakeGcp) -> Iterator[Cloud]:
    place = {"zone": "z1-a"} if request.param == "zone" else {"region": "z1"}
    made = Cloud(endpoint, world, **place)
    yield made
    made.close()


@pytest.fixture
def zonal(endpoint: str, world: FakeGcp) -> Iterator[Cloud]:
    made = Cloud(endpoint, world, zone="z1-a")
    yield made
    made.close()


def nodes(cloud: Cloud, count: int) -> list[str]:
    cloud.provider.grow(count, read(cloud.provider))
    return running(settled(cloud.provider, count))


def refused(cloud: Cloud) -> ProviderError:
    with pytest.raises(ProviderError) as failed:
        read(cloud.provider)
    return failed.value


def test_a_machine_is_known_by_name_zone_kind_market_and_age(cloud: Cloud) -> None:
    (node,) = nodes(cloud, 1)
    (found,) = read(cloud.provider).instances
    assert (found.node, found.kind, found.market) == (node, "g2-standard-8", Market.SPOT)
    assert found.zone in cloud.group.zones
    assert found.since_s == 1796040000.0


def test_machines_pass_through_starting(cloud: Cloud) -> None:
    cloud.provider.grow(1, read(cloud.provider))
    phases = [tuple(i.phase for i in read(cloud.provider).instances) for _ in range(4)]
    starting, running_ = InstancePhase.STARTING, InstancePhase.RUNNING
    assert phases == [(), (starting,), (starting,), (running_,)], "an empty place is no machine"


def test_every_page_is_read(cloud: Cloud) -> None:
    cloud.world.page_size = 2
    assert len(nodes(cloud, 5)) == 5
    assert not any("label" in warning for warning in read(cloud.provider).warnings)


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (EXHAUSTED, Trouble.CAPACITY),
        ({"code": "STOCKOUT"}, Trouble.CAPACITY),
        ({"code": "QUOTA_EXCEEDED", "message": "Quota 'PREEMPTIBLE_CPUS' exceeded."}, Trouble.QUOTA),
        ({"code": "IP_SPACE_EXHAUSTED"}, Trouble.QUOTA),
        ({"code": "PERMISSION_DENIED"}, Trouble.AUTH),
        ({"code": "RESOURCE_NOT_FOUND", "message": "no image"}, Trouble.CONFIG),
        ({"code": "SOMETHING_NEW"}, Trouble.UNKNOWN),
    ],
)
def test_why_machines_do_not_come_is_told_and_classified(
    zonal: Cloud, error: dict[str, str], trouble: Trouble
) -> None:
    zonal.group.stock, zonal.group.error = 1, error
    zonal.provider.grow(3, read(zonal.provider))
    reading = until(zonal.provider, lambda r: bool(r.shortage))
    assert reading.shortage.startswith(error["code"])
    assert reading.shortage_trouble is trouble
    assert reading.desired == 3


def test_the_newest_error_of_the_group_is_told_where_no_place_has_one(zonal: Cloud) -> None:
    zonal.group.log = [
        {"error": {"code": "OLD"}, "timestamp": "2026-11-30T10:00:00Z"},
        {"error": {"code": "STOCKOUT"}, "timestamp": "2026-11-30T03:00:00.000-08:00"},
    ]
    now_s = 1796036401.0  # 2026-11-30T11:00:01Z
    assert zonal.provider.read(now_s).shortage == "", "nothing is short"
    zonal.provider.grow(1, zonal.provider.read(now_s))
    assert zonal.provider.read(now_s).shortage == "STOCKOUT"


def test_what_failed_before_the_target_rose_explains_nothing(zonal: Cloud) -> None:
    zonal.group.log = [{"error": {"code": "STOCKOUT"}, "timestamp": "2026-11-30T11:00:00Z"}]
    now_s = 1796036400.0 + 600.0
    zonal.provider.grow(1, zonal.provider.read(now_s))
    assert zonal.provider.read(now_s + 10.0).shortage == ""


def test_giving_up_takes_back_what_did_not_come_and_nothing_else(zonal: Cloud) -> None:
    zonal.group.stock = 2
    zonal.provider.grow(4, read(zonal.provider))
    reading = until(zonal.provider, lambda r: len(running(r)) == 2 and bool(r.shortage))
    zonal.provider.give_up(reading)
    assert running(settled(zonal.provider, 2)) == running(reading)
    zonal.group.stock = 4
    assert running(settled(zonal.provider, 2)) == running(reading)


def test_a_preempted_machine_is_away_until_its_place_is_filled_again(zonal: Cloud) -> None:
    first, second = nodes(zonal, 2)
    zonal.group.stock = 1
    zonal.world.preempt(zonal.group, first)
    phases = [found.phase if (found := seen(read(zonal.provider), first)) else None for _ in range(3)]
    assert phases == [None, None, None]
    reading = read(zonal.provider)
    assert (reading.desired, reading.shortage_trouble) == (2, Trouble.CAPACITY)
    zonal.group.stock = 2
    assert running(settled(zonal.provider, 2)) == [first, second]


def test_a_stopped_machine_that_nobody_replaces_is_told_with_its_reason(zonal: Cloud) -> None:
    (node,) = nodes(zonal, 1)
    zonal.group.machines[node].status = "TERMINATED"
    found = seen(read(zonal.provider), node)
    assert found is not None
    assert (found.phase, found.reason) == (InstancePhase.STOPPED, "TERMINATED, NONE")


@pytest.mark.parametrize("status", ["REPAIRING", "A_STATE_OF_TOMORROW"])
def test_a_state_that_is_not_known_does_not_upset_the_reading(zonal: Cloud, status: str) -> None:
    (node,) = nodes(zonal, 1)
    zonal.group.machines[node].status = status
    assert alive(read(zonal.provider)) == [node]


def test_an_abandoned_machine_is_a_stray_and_can_be_ended(cloud: Cloud) -> None:
    first, second = nodes(cloud, 2)
    cloud.world.abandon(cloud.group, first)
    reading = read(cloud.provider)
    found = seen(reading, first)
    assert found is not None
    assert found.is_stray
    assert reading.desired == 1
    cloud.provider.release([first], reading)
    assert running(settled(cloud.provider, 1)) == [second]


def test_a_protected_stray_keeps_no_other_from_ending(zonal: Cloud) -> None:
    strays = sorted(nodes(zonal, 2))
    for node in strays:
        zonal.world.abandon(zonal.group, node)
    reading = read(zonal.provider)
    zonal.world.faults.append(Fault(f"DELETE .*/{strays[0]}$", 400))
    with pytest.raises(ProviderError):
        zonal.provider.release(strays, reading)
    reading = read(zonal.provider)
    assert [i.node for i in reading.instances] == strays[:1]
    zonal.provider.release(strays[:1], reading)
    assert read(zonal.provider).instances == ()


def test_a_stray_that_went_by_itself_is_ended_already(zonal: Cloud) -> None:
    (stray,) = nodes(zonal, 1)
    zonal.world.abandon(zonal.group, stray)
    reading = read(zonal.provider)
    gone = Fault("DELETE", 404, body={"error": {"message": "not found"}})
    zonal.world.faults.append(gone)
    zonal.provider.release([stray], reading)
    assert gone.count == 0, "nobody asked for its end"


def test_machines_of_another_group_are_none_of_ours(cloud: Cloud) -> None:
    other = cloud.world.add_group("other", zone="z1-a")
    nodes(cloud, 1)
    other.target = 1
    cloud.world.answer("POST", f"{other.path}/listManagedInstances", {}, {})
    for machine in other.machines.values():
        machine.status = "RUNNING"
    assert len(read(cloud.provider).instances) == 1
    cloud.world.abandon(other, next(iter(other.machines)))
    assert len(read(cloud.provider).instances) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"status": {"autoscaler": "https://a"}}, "autoscaler"),
        ({"updatePolicy": {"instanceRedistributionType": "PROACTIVE"}}, "instanceRedistributionType"),
        ({"updatePolicy": {"type": "PROACTIVE"}}, "updatePolicy"),
        ({"autoHealingPolicies": [{"healthCheck": "h"}]}, "auto-healing"),
    ],
)
def test_m28_settings_that_end_busy_nodes_are_warned_of(
    zonal: Cloud, settings: dict[str, object], words: str
) -> None:
    assert read(zonal.provider).warnings == ()
    zonal.group.settings = settings
    (warning,) = read(zonal.provider).warnings
    assert words in warning


@pytest.mark.parametrize(
    ("status", "body", "headers", "trouble", "retry_after_s"),
    [
        (401, "", {}, Trouble.AUTH, None),
        (403, {"error": {"errors": [{"reason": "forbidden"}]}}, {}, Trouble.AUTH, None),
        (403, {"error": {"errors": [{"reason": "rateLimitExceeded"}]}}, {}, Trouble.THROTTLED, None),
        (403, {"error": {"errors": [{"reason": "quotaExceeded"}]}}, {}, Trouble.QUOTA, None),
        (404, {"error": {"message": "not found"}}, {}, Trouble.CONFIG, None),
        (400, {"error": {"errors": [{"reason": "resourceNotReady"}]}}, {}, Trouble.RETRY, None),
        (409, "", {}, Trouble.RETRY, None),
        (429, "", {"retry-after": "30"}, Trouble.THROTTLED, 30.0),
        (503, "<html>sorry</html>", {}, Trouble.RETRY, None),
        (200, "<html>a proxy</html>", {}, Trouble.RETRY, None),
        (0, "", {}, Trouble.RETRY, None),
    ],
)
@pytest.mark.parametrize("call", ["GET .*/g$", "listManaged"])
def test_m31_a_reading_is_whole_or_an_error_of_its_kind(
    zonal: Cloud,
    call: str,
    status: int,
    body: dict[str, object] | str,
    headers: dict[str, str],
    trouble: Trouble,
    retry_after_s: float | None,
) -> None:
    zonal.world.faults.append(Fault(call, status, body=body, headers=headers))
    error = refused(zonal)
    assert (error.trouble, error.retry_after_s) == (trouble, retry_after_s)
    assert read(zonal.provider).instances == ()


def test_a_zone_that_does_not_answer_is_no_empty_zone(endpoint: str, world: FakeGcp) -> None:
    cloud = Cloud(endpoint, world, region="z1")
    world.faults.append(Fault("zones/z1-b/instances", 503))
    assert "zones/z1-b" in str(refused(cloud))
    cloud.close()


def test_zones_without_the_group_are_not_asked(cloud: Cloud) -> None:
    cloud.world.faults.append(Fault("aggregated|zones/elsewhere", 503))
    nodes(cloud, 1)
    assert read(cloud.provider).instances[0].market is Market.SPOT


def test_nobody_at_the_endpoint_is_worth_another_try() -> None:
    rest = Rest("http://127.0.0.1:1", is_anonymous=True)
    provider = GcpProvider(
        GcpPool(name="p", provider="gcp", project="p", group="g", zone="z"), rest, MemoryNotes()
    )
    with pytest.raises(ProviderError) as failed:
        read(provider)
    assert failed.value.trouble is Trouble.RETRY
    rest.close()


def test_m8_a_growth_whose_answer_was_lost_is_not_done_twice(zonal: Cloud) -> None:
    old = read(zonal.provider)
    zonal.world.faults.append(Fault("resize", 0))
    with pytest.raises(ProviderError):
        zonal.provider.grow(2, old)
    with pytest.raises(ProviderError, match="target size is 2 now"):
        zonal.provider.grow(2, old)
    settled(zonal.provider, 2)
    assert zonal.world.count("resize") == 1


def test_m8_m44_a_release_whose_answer_was_lost_lowers_the_target_once(zonal: Cloud) -> None:
    first, second, third = nodes(zonal, 3)
    old = read(zonal.provider)
    zonal.world.faults.append(Fault("deleteInstances", 0))
    with pytest.raises(ProviderError):
        zonal.provider.release([first], old)
    zonal.provider.release([first], old)
    assert zonal.group.target == 2
    assert running(settled(zonal.provider, 2)) == [second, third]


def test_a_release_of_many_is_one_call(zonal: Cloud) -> None:
    names = nodes(zonal, 4)
    zonal.provider.release(names, read(zonal.provider))
    settled(zonal.provider, 0)
    assert zonal.world.count("deleteInstances") == 1


def test_a_node_of_long_ago_may_be_released_one_of_another_group_may_not(zonal: Cloud) -> None:
    zonal.provider.release(["g-0f0f"], read(zonal.provider))
    with pytest.raises(InvalidInput, match="other-0f0f"):
        zonal.provider.release(["other-0f0f"], read(zonal.provider))
    assert zonal.world.count("deleteInstances") == 0


def test_m34_no_write_begins_while_another_is_under_way_also_after_a_restart(zonal: Cloud) -> None:
    first, _ = nodes(zonal, 2)
    zonal.world.are_operations_slow = True
    zonal.provider.release([first], read(zonal.provider))
    for provider in (zonal.provider, zonal.reopen()):
        reading = read(provider)
        assert reading.is_writing
        with pytest.raises(ProviderError, match="under way") as failed:
            provider.grow(2, reading)
        assert failed.value.trouble is Trouble.RETRY
    zonal.world.finish_operations()
    zonal.world.are_operations_slow = False
    assert not read(zonal.provider).is_writing
    assert len(nodes(zonal, 2)) == 2


def test_a_write_that_failed_in_the_end_is_told_once_as_a_shortage(zonal: Cloud) -> None:
    zonal.world.operation_error = {"code": "QUOTA_EXCEEDED", "message": "no more CPUs"}
    zonal.provider.grow(2, read(zonal.provider))
    reading = read(zonal.provider)
    assert (reading.shortage, reading.shortage_trouble) == ("QUOTA_EXCEEDED: no more CPUs", Trouble.QUOTA)
    assert (reading.desired, reading.is_writing) == (0, False)
    assert read(zonal.provider).shortage == ""


def test_a_forgotten_operation_is_over(zonal: Cloud) -> None:
    zonal.world.are_operations_slow = True
    zonal.provider.grow(1, read(zonal.provider))
    zonal.world.forget_operations()
    assert not read(zonal.provider).is_writing
    settled(zonal.provider, 1)


def test_m43_a_reading_is_a_constant_number_of_calls(cloud: Cloud) -> None:
    nodes(cloud, 4)
    before = len(cloud.world.calls)
    read(cloud.provider)
    assert len(cloud.world.calls) - before == 2 + len(cloud.group.zones)


def test_nothing_is_written_by_reading(zonal: Cloud) -> None:
    nodes(zonal, 2)
    writes = zonal.world.count("resize|deleteInstances|DELETE")
    reading: PoolReading = read(zonal.provider)
    assert len(reading.instances) == 2
    assert zonal.world.count("resize|deleteInstances|DELETE") == writes


_OFFICIAL = """
import sys
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1 as c

where = dict(credentials=AnonymousCredentials(), client_options=ClientOptions(api_endpoint=sys.argv[1]))
groups = c.InstanceGroupManagersClient(**where)
group = dict(project="proj", zone="z1-a", instance_group_manager="g")
operation = groups.resize_unary(**group, size=3)
done = c.ZoneOperationsClient(**where).get(project="proj", zone="z1-a", operation=operation.name)
assert done.status is c.Operation.Status.DONE, done
assert groups.get(**{"project": "proj", "zone": "z1-a", "instance_group_manager": "g"}).target_size == 3
for _ in range(4):
    members = list(groups.list_managed_instances(**group))
assert [m.instance_status for m in members] == ["RUNNING"] * 3, members
assert all(m.current_action == "NONE" and m.name in m.instance for m in members)
machines = list(c.InstancesClient(**where).list(request=c.ListInstancesRequest(
    project="proj", zone="z1-a", filter="labels.varuna-cluster=varuna")))
assert [m.scheduling.provisioning_model for m in machines] == ["SPOT"] * 3
wanted = c.InstanceGroupManagersDeleteInstancesRequest(
    instances=[members[0].instance], skip_instances_on_validation_error=True)
groups.delete_instances_unary(**group, instance_group_managers_delete_instances_request_resource=wanted)
assert [m.current_action for m in groups.list_managed_instances(**group)].count("DELETING") == 1
assert not list(groups.list_errors(**group))
"""


def test_the_fake_answers_the_official_client(endpoint: str, world: FakeGcp) -> None:
    world.add_group("g", zone="z1-a")
    world.page_size = 2
    done = subprocess.run(
        [sys.executable, "-c", _OFFICIAL, endpoint], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
