"""An Auto Scaling group keeps the promises of a pool: real boto3, a real server, and broken answers."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract.provider_suite import ProviderSuite
from tests.support.clouds.fault_proxy import FaultProxy, Rule, aws_error, html_error, json_error
from tests.support.clouds.moto import IDENTITY, REGION, Group, Moto, NoticesQueue
from tests.support.deploy import DEPLOY
from tests.support.notes import MemoryNotes
from varuna_manager.cloud.aws import open_aws
from varuna_manager.cloud.aws.calls import OPERATIONS, AwsCalls
from varuna_manager.cloud.aws.provider import AwsProvider
from varuna_manager.cloud.provider import Instance, InstancePhase, Market, PoolReading, ProviderError, Trouble
from varuna_manager.pool_settings import AwsPool
from varuna_runtime.spec.errors import InvalidInput

NOW_S = time.time()
WRITES = (
    "SetDesiredCapacity",
    "TerminateInstanceInAutoScalingGroup",
    "TerminateInstances",
    "SetInstanceProtection",
    "CompleteLifecycleAction",
)
END = "TerminateInstanceInAutoScalingGroup"


@pytest.fixture(scope="module")
def moto() -> Iterator[Moto]:
    with Moto() as moto:
        yield moto


@pytest.fixture(scope="module")
def broken(moto: Moto) -> Iterator[FaultProxy]:
    with FaultProxy(moto.url) as proxy, pytest.MonkeyPatch.context() as environment:
        for name, value in {**IDENTITY, "AWS_ENDPOINT_URL": proxy.url}.items():
            environment.setenv(name, value)
        yield proxy


@pytest.fixture
def proxy(broken: FaultProxy) -> FaultProxy:
    broken.clear()
    return broken


@pytest.fixture(scope="module")
def calls(broken: FaultProxy) -> AwsCalls:
    """The SDK's clients, shared: it takes a while to make them, and they know nothing of a pool."""
    return AwsCalls(REGION)


@pytest.fixture
def group(moto: Moto, request: pytest.FixtureRequest) -> Group:
    """A group and a cluster for each test: to empty the server takes longer than most of them."""
    name = f"pool-{abs(hash(request.node.nodeid))}"
    return Group(moto, name, cluster=name)


@pytest.fixture
def pool(proxy: FaultProxy, calls: AwsCalls, group: Group) -> AwsProvider:
    return AwsProvider(settings(group), MemoryNotes(), calls)


@pytest.fixture
def queue(moto: Moto, group: Group) -> Iterator[NoticesQueue]:
    queue = NoticesQueue(moto, group.name)
    yield queue
    queue.close()


@pytest.fixture
def noticing(proxy: FaultProxy, calls: AwsCalls, group: Group, queue: NoticesQueue) -> AwsProvider:
    return AwsProvider(settings(group, notices_queue=queue.url), MemoryNotes(), calls)


class GroupPool:
    """A group of its own for what every provider promises."""

    names_return = False

    def __init__(self, group: Group, proxy: FaultProxy, calls: AwsCalls) -> None:
        self._group = group.create(0)
        self._proxy = proxy
        self._calls = calls
        self._notes = MemoryNotes()
        self.provider: AwsProvider = self.reopen()

    def reopen(self) -> AwsProvider:
        return AwsProvider(settings(self._group), self._notes, self._calls)

    def kill(self, node: str) -> None:
        self._group.preempt(node)

    @contextmanager
    def failing(self) -> Iterator[None]:
        self._proxy.add(aws_error(".*", "AccessDenied", status=403))
        yield
        self._proxy.heal()


class TestSuite(ProviderSuite):
    """What every provider promises."""

    @pytest.fixture
    def pool(self, group: Group, proxy: FaultProxy, calls: AwsCalls) -> GroupPool:
        return GroupPool(group, proxy, calls)


def settings(group: Group, **more: object) -> AwsPool:
    values = {"name": "spot", "provider": "aws", "group": group.name, "cluster": group.cluster, "max": 10}
    return AwsPool.model_validate({**values, "region": REGION, **more})


def phases(reading: PoolReading) -> dict[str, InstancePhase]:
    return {i.node: i.phase for i in reading.instances}


def named(reading: PoolReading, node: str) -> Instance:
    return next(i for i in reading.instances if i.node == node)


def refusal(call: Callable[[], object]) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        call()
    return caught.value


def lifecycle(node: str, state: str) -> Rule:
    """The group says `state` of one member."""
    pattern = rf"(<LifecycleState>)InService(</LifecycleState>(?:(?!<member>).)*?<InstanceId>{node})"
    other = rf"(<InstanceId>{node}</InstanceId>(?:(?!</member>).)*?<LifecycleState>)InService(<)"
    return Rule(
        operation="DescribeAutoScalingGroups",
        rewrites=((other, rf"\g<1>{state}\g<2>"), (pattern, rf"\g<1>{state}\g<2>")),
    )


def short_of(desired: int) -> Rule:
    """The group says that its target is higher than what it has."""
    target = (r"<DesiredCapacity>\d+<", f"<DesiredCapacity>{desired}<")
    return Rule(operation="DescribeAutoScalingGroups", rewrites=(target,))


def activity(status: str, message: str, at_s: float) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))
    return (
        "<member><ActivityId>a</ActivityId><AutoScalingGroupName>pool</AutoScalingGroupName>"
        "<Description>Launching a new EC2 instance.  Status Reason: below</Description><Cause>so</Cause>"
        f"<StartTime>{stamp}</StartTime><StatusCode>{status}</StatusCode>"
        f"<StatusMessage>{message}</StatusMessage><Progress>100</Progress></member>"
    )


def activities(*members: str) -> Rule:
    body = (
        '<DescribeScalingActivitiesResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/">'
        f"<DescribeScalingActivitiesResult><Activities>{''.join(members)}</Activities>"
        "</DescribeScalingActivitiesResult></DescribeScalingActivitiesResponse>"
    )
    return Rule(operation="DescribeScalingActivities", status=200, body=body)


COMPLETED = Rule(
    operation="CompleteLifecycleAction",
    status=200,
    body="<CompleteLifecycleActionResponse><CompleteLifecycleActionResult/></CompleteLifecycleActionResponse>",
)


# What a reading tells.


def test_a_reading_tells_the_group_and_its_machines(pool: AwsProvider, group: Group) -> None:
    group.create(2, least=1, most=10)
    reading = pool.read(NOW_S)
    assert (reading.desired, reading.least, reading.most) == (2, 1, 10)
    assert [i.node for i in reading.instances] == group.members()
    for instance in reading.instances:
        assert (instance.phase, instance.zone, instance.kind) == (
            InstancePhase.RUNNING,
            f"{REGION}a",
            "g4dn.xlarge",
        )
        assert instance.since_s == group.launched_at_s(instance.node)
        assert not instance.is_stray
    assert reading.price == pytest.approx(0.00001)
    assert (reading.shortage, reading.is_writing) == ("", False)
    assert reading.warnings == ("MinSize 1 of the group is above min 0 of the pool; lower it",)


def test_an_empty_group_is_a_reading(pool: AwsProvider, group: Group) -> None:
    group.create(0)
    reading = pool.read(NOW_S)
    assert (reading.instances, reading.desired, reading.warnings) == ((), 0, ())


def test_a_spot_machine_is_told_from_another(pool: AwsProvider, group: Group, proxy: FaultProxy) -> None:
    group.create(1)
    assert pool.read(NOW_S).instances[0].market is Market.ON_DEMAND
    spot = ("<instanceType>", "<instanceLifecycle>spot</instanceLifecycle><instanceType>")
    proxy.add(Rule(operation="DescribeInstances", rewrites=(spot,)))
    assert pool.read(NOW_S).instances[0].market is Market.SPOT


def test_a_preempted_machine_is_gone_for_a_reason_and_for_ever(
    pool: AwsProvider, group: Group, proxy: FaultProxy
) -> None:
    group.create(2)
    victim = group.members()[0]
    pool.read(NOW_S)
    before_s = time.monotonic()
    group.preempt(victim)
    reading = pool.read(NOW_S)
    assert named(reading, victim).phase is InstancePhase.GONE
    assert "Client.UserInitiatedShutdown" in named(reading, victim).reason
    assert reading.desired == 2
    proxy.add(Rule(operation="DescribeInstances", stale_s=time.monotonic() - before_s))
    assert named(pool.read(NOW_S + 1), victim).phase is InstancePhase.GONE


def test_the_reason_of_a_preemption_is_told(pool: AwsProvider, group: Group, proxy: FaultProxy) -> None:
    group.create(1)
    victim = group.members()[0]
    group.preempt(victim)
    words = ("Client.UserInitiatedShutdown", "Server.SpotInstanceTermination")
    proxy.add(Rule(operation="DescribeInstances", rewrites=(words,)))
    assert named(pool.read(NOW_S), victim).reason.startswith("Server.SpotInstanceTermination")


def test_a_member_that_ec2_does_not_list_yet_is_starting(
    pool: AwsProvider, group: Group, proxy: FaultProxy
) -> None:
    group.create(1)
    old = group.members()[0]
    seen = pool.read(NOW_S)
    proxy.add(Rule(operation="DescribeInstances", stale_s=0))
    pool.grow(3, seen)
    found = phases(pool.read(NOW_S))
    assert len(found) == 3
    assert found.pop(old) is InstancePhase.RUNNING
    assert set(found.values()) == {InstancePhase.STARTING}


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("Pending:Wait", InstancePhase.STARTING),
        ("Standby", InstancePhase.STOPPED),
        ("Terminating:Proceed", InstancePhase.LEAVING),
        ("Terminated", InstancePhase.LEAVING),
        ("Detaching", InstancePhase.RUNNING),
        ("SomethingNew", InstancePhase.RUNNING),
    ],
)
def test_every_state_of_a_member_has_a_phase_even_one_not_invented_yet(
    pool: AwsProvider, group: Group, proxy: FaultProxy, state: str, phase: InstancePhase
) -> None:
    group.create(2)
    first, second = group.members()
    proxy.add(lifecycle(first, state))
    assert phases(pool.read(NOW_S)) == {first: phase, second: InstancePhase.RUNNING}


def test_pages_are_followed_to_the_end_and_half_an_answer_is_none(proxy: FaultProxy, group: Group) -> None:
    group.create(0)
    for desired in range(1, 8):  # each a reservation of its own: that is what a page holds
        group.autoscaling.set_desired_capacity(AutoScalingGroupName=group.name, DesiredCapacity=desired)
    pool = AwsProvider(settings(group), MemoryNotes(), AwsCalls(REGION, page_size=5))
    assert [i.node for i in pool.read(NOW_S).instances] == group.members()
    assert proxy.calls()["DescribeInstances"] == 4  # two pages by the group's tag, two by ours
    proxy.add(aws_error("DescribeInstances", "UnauthorizedOperation", status=403, skip=1))
    assert refusal(lambda: pool.read(NOW_S)).trouble is Trouble.AUTH


def test_m43_a_reading_takes_as_many_calls_for_ten_machines_as_for_one(
    pool: AwsProvider, group: Group, proxy: FaultProxy
) -> None:
    group.create(1)
    pool.read(NOW_S)
    first = proxy.calls()
    group.autoscaling.set_desired_capacity(AutoScalingGroupName=group.name, DesiredCapacity=10)
    proxy.clear()
    pool.read(NOW_S + 10)
    assert proxy.calls() == {"DescribeAutoScalingGroups": 1, "DescribeInstances": 2}
    assert sum(first.values()) == 5  # and the template and the prices once


# Strays.


def test_a_detached_machine_is_a_stray_and_is_ended_alone(pool: AwsProvider, group: Group) -> None:
    group.create(3)
    loose, *rest = group.members()
    group.autoscaling.detach_instances(
        AutoScalingGroupName=group.name, InstanceIds=[loose], ShouldDecrementDesiredCapacity=True
    )
    seen = pool.read(NOW_S)
    assert [i.node for i in seen.instances if i.is_stray] == [loose]
    pool.release([loose], seen)
    assert group.running() == rest
    assert group.desired == 2
    pool.release([loose], seen)
    after = named(pool.read(NOW_S), loose)
    assert (after.phase, after.is_stray) == (InstancePhase.GONE, False)


def test_a_locked_stray_keeps_nothing_else_from_ending(
    pool: AwsProvider, group: Group, proxy: FaultProxy
) -> None:
    (member,) = group.create(1).members()
    strays = sorted([group.run_stray(), group.run_stray()])
    seen = pool.read(NOW_S)
    proxy.add(aws_error("TerminateInstances", "OperationNotPermitted", times=1))
    assert refusal(lambda: pool.release([*strays, member], seen)).trouble is Trouble.CONFIG
    assert group.running() == strays[:1]


def test_members_that_outlive_their_group_are_strays(pool: AwsProvider, group: Group) -> None:
    group.create(2)
    orphans = group.members()
    group.autoscaling.delete_auto_scaling_group(AutoScalingGroupName=group.name, ForceDelete=True)
    assert group.running() == orphans  # protected ones survive here; with AWS after a detach
    assert refusal(lambda: pool.read(NOW_S)).trouble is Trouble.CONFIG
    group.ec2.delete_launch_template(LaunchTemplateName=group.name)
    group.create(1)
    seen = pool.read(NOW_S)
    assert sorted(i.node for i in seen.instances if i.is_stray) == orphans
    pool.release(orphans, seen)
    assert group.running() == group.members()


def test_members_of_another_group_and_machines_of_another_cluster_are_none_of_ours(
    pool: AwsProvider, group: Group, moto: Moto, proxy: FaultProxy
) -> None:
    group.create(1)
    Group(moto, f"{group.name}-other", cluster=group.cluster).create(1)
    Group(moto, f"{group.name}-foreign", cluster="theirs").create(1)
    group.run_stray(**{"varuna:cluster": "theirs"})
    assert [i.node for i in pool.read(NOW_S).instances] == group.members()
    assert proxy.calls()["DescribeAutoScalingInstances"] == 0  # their group's tag says enough


def test_a_name_is_no_pattern(group: Group, calls: AwsCalls, proxy: FaultProxy) -> None:
    group.create(1)
    group.run_stray()
    pool = AwsProvider(settings(group, cluster=f"{group.cluster[:-1]}*"), MemoryNotes(), calls)
    assert [i.node for i in pool.read(NOW_S).instances] == group.members()


def test_one_that_joins_between_two_calls_is_no_stray(
    pool: AwsProvider, group: Group, proxy: FaultProxy
) -> None:
    group.create(1)
    pool.read(NOW_S)
    group.autoscaling.set_desired_capacity(AutoScalingGroupName=group.name, DesiredCapacity=3)
    proxy.add(Rule(operation="DescribeAutoScalingGroups", stale_s=0))
    found = pool.read(NOW_S).instances
    assert [i.node for i in found] == group.members()
    assert not any(i.is_stray for i in found)


# Growing.


def test_growing_sets_the_target_once(pool: AwsProvider, group: Group, proxy: FaultProxy) -> None:
    group.create(1)
    seen = pool.read(NOW_S)
    pool.grow(4, seen)
    assert (group.desired, len(group.running())) == (4, 4)
    pool.grow(4, seen)
    assert proxy.calls()["SetDesiredCapacity"] == 1


def test_m29_a_group_that_replaces_by_itself_is_not_grown_too(
    pool: AwsProvider, group: Group, proxy: FaultProxy
) -> None:
    group.create(4)
    first, second = group.members()[:2]
    proxy.add(lifecycle(first, "Terminated"), lifecycle(second, "Terminated"))
    seen = pool.read(NOW_S)  # the group is replacing already
    with pytest.raises(InvalidInput, match="already"):
        pool.grow(4, seen)
    assert proxy.calls()["SetDesiredCapacity"] == 0


def test_growing_refuses_when_the_target_has_moved(pool: AwsProvider, group: Group) -> None:
    group.create(1)
    seen = pool.read(NOW_S)
    group.autoscaling.set_desired_capacity(AutoScalingGroupName=group.name, DesiredCapacity=6)
    assert refusal(lambda: pool.grow(3, seen)).trouble is Trouble.RETRY
    assert group.desired == 6


def test_growing_beyond_the_group_is_for_a_person(pool: AwsProvider, group: Group) -> None:
    group.create(1, most=4)
    seen = pool.read(NOW_S)
    assert any("MaxSize 4" in w for w in seen.warnings)
    refused = refusal(lambda: pool.grow(5, seen))
    assert refused.trouble is Trouble.CONFIG
    assert "MaxSize is 4" in str(refused)
    assert group.desired == 1


def test_m8_a_lost_answer_to_growing_does_not_grow_twice(
    pool: AwsProvider, group: Group, proxy: FaultProxy
) -> None:
    group.create(1)
    seen = pool.read(NOW_S)
    proxy.add(Rule(operation="SetDesiredCapacity", loses=True))
    assert refusal(lambda: pool.grow(4, seen)).trouble is Trouble.RETRY
    proxy.clear()
    pool.grow(4, seen)
    assert (group.desired, len(group.running())) == (4, 4)
    assert proxy.calls()["SetDesiredCapacity"] == 0
    assert pool.read(NOW_S + 1).is_writing  # no write on top of one whose fate was not known
    assert not pool.read(NOW_S + 16).is_writing


def test_a_reading_from_before_a_write_says_so(pool: AwsProvider, group: Group, proxy: FaultProxy) -> None:
    group.create(1)
    seen = pool.read(NOW_S)
    proxy.add(Rule(operation="DescribeAutoScalingGroups", stale_s=0, skip=1))
    pool.grow(4, seen)
    stale = pool.read(NOW_S + 1)
    assert (stale.desired, stale.is_writing) == (1, True)
    proxy.heal()
    fresh = pool.read(NOW_S + 2)
    assert (fresh.desired, fresh.is_writing) == (4, False)


def test_a_group_that_counts_weights_is_not_sized(pool: AwsProvider, group: Group, proxy: FaultProxy) -> None:
    group.create(1)
    weight = (r"</InstanceType></member>", "</InstanceType><WeightedCapacity>4</WeightedCapacity></member>")
    proxy.add(Rule(operation="DescribeAutoScalingGroups", rewrites=(weight,)))
    seen = pool.read(NOW_S)
    assert any("weights" in w for w in seen.warnings)
    assert refusal(lambda: pool.grow(3, seen)).trouble is Trouble.CONFIG
    assert group.desired == 1


# Releasing.


def test_m44_exactly_the_released_end_and_nothing_comes_in_their_place(
    pool: AwsProvider, group: Group
) -> None:
    group.create(4)
    first, second, *rest = group.members()
    seen = pool.read(NOW_S)
    pool.release([first, second], seen)
    assert (group.running(), group.desired) == (rest, 2)
    pool.release([second, first], seen)
    assert (group.running(), group.desired) == (rest, 2)
    after = pool.read(NOW_S + 1)
    assert not after.is_writing
    assert phases(after)[first] is InstancePhase.GONE


def test_a_lost_answer_to_a_release_lowers_the_target_once(
    pool: AwsProvider, group: Group, proxy: FaultProxy
) -> None:
    group.create(4)
    node = group.members()[0]
    seen = pool.read(NOW_S)
    proxy.add(Rule(operation=END, loses=True, times=1))
    assert refusal(lambda: pool.release([node], seen)).trouble is Trouble.RETRY
    assert pool.read(NOW_S).is_writing
    pool.release([node], seen)
    assert (group.desired, proxy.calls()[END]) == (3, 1)


def test_m9_a_release_that_failed_half_way_is_finished_by_the_next(
    pool: AwsProvider, group: Group, proxy: FaultProxy
) -> None:
    group.create(3)
    nodes = group.members()
    seen = pool.read(NOW_S)
    proxy.add(aws_error(END, "ScalingActivityInProgress", skip=1, times=1))
    assert refusal(lambda: pool.release(nodes, seen)).trouble is Trouble.RETRY
    assert len(group.running()) == 2
    pool.release(nodes, pool.read(NOW_S))
    assert (group.running(), group.desired) == ([], 0)


def test_m19_a_release_that_did_nothing_is_seen_to_have_done_nothing(
    pool: AwsProvider, group: Group, proxy: FaultProxy
) -> None:
    group.create(2)
    node = group.members()[0]
    seen = pool.read(NOW_S)
    answer = f"<{END}Response><{END}Result/></{END}Response>"
    proxy.add(Rule(operation=END, status=200, body=answer))
    pool.release([node], seen)
    after = pool.read(NOW_S + 1)
    assert (phases(after)[node], after.is_writing) == (InstancePhase.RUNNING, True)
    assert not pool.read(NOW_S + 61).is_writing  # then it may be tried again


def test_what_leaves_already_is_not_ended_again(pool: AwsProvider, group: Group, proxy: FaultProxy) -> None:
    group.create(3)
    leaving, other, _ = group.members()
    proxy.add(lifecycle(leaving, "Terminating"))
    seen = pool.read(NOW_S)
    pool.release([leaving, other], seen)
    assert (group.desired, proxy.calls()[END]) == (2, 1)


def test_a_machine_in_standby_ends_without_lowering_the_target(pool: AwsProvider, group: Group) -> None:
    group.create(2)
    aside, other = group.members()
    group.autoscaling.enter_standby(
        AutoScalingGroupName=group.name, InstanceIds=[aside], ShouldDecrementDesiredCapacity=True
    )
    seen = pool.read(NOW_S)
    assert phases(seen)[aside] is InstancePhase.STOPPED
    pool.release([aside], seen)
    assert (group.desired, aside in group.running(), other in group.running()) == (1, False, True)


def test_what_ends_at_the_least_of_the_group_is_replaced(pool: AwsProvider, group: Group) -> None:
    group.create(3, least=2)
    *useless, kept = group.members()
    pool.release(useless, pool.read(NOW_S))
    after = group.members()
    assert (group.desired, len(after), kept in after) == (2, 2, True)
    assert not {*useless} & {*after}


def test_a_release_of_very_many_is_done_in_parts(pool: AwsProvider, group: Group, proxy: FaultProxy) -> None:
    group.create(103, most=200)
    nodes = group.members()
    refused = refusal(lambda: pool.release(nodes[:102], pool.read(NOW_S)))
    assert (refused.trouble, proxy.calls()[END], group.desired) == (Trouble.RETRY, 100, 3)
    pool.release(nodes[:102], pool.read(NOW_S))
    assert group.running() == nodes[102:]


def test_an_unknown_node_is_refused_by_name(pool: AwsProvider, group: Group) -> None:
    group.create(1)
    seen = pool.read(NOW_S)
    for call in (lambda: pool.release(["i-nowhere"], seen), lambda: pool.let_go("i-nowhere", seen)):
        with pytest.raises(InvalidInput, match="i-nowhere"):
            call()
    assert len(group.running()) == 1


# Shortage, and giving up.


def test_a_shortage_is_told_with_its_cause(pool: AwsProvider, group: Group, proxy: FaultProxy) -> None:
    group.create(2)
    told = (
        "Could not launch Spot Instances. InsufficientInstanceCapacity - There is no Spot capacity available."
    )
    proxy.add(short_of(5), activities(activity("Failed", told, NOW_S)))
    reading = pool.read(NOW_S)
    assert (reading.shortage, reading.shortage_trouble) == (told, Trouble.CAPACITY)
    proxy.clear()
    assert pool.read(NOW_S).shortage == ""
    assert proxy.calls()["DescribeScalingActivities"] == 0


def test_what_failed_before_the_target_rose_explains_nothing(
    pool: AwsProvider, group: Group, proxy: FaultProxy
) -> None:
    group.create(2)
    told = "MaxSpotInstanceCountExceeded - Max spot instance count exceeded."
    proxy.add(short_of(5), activities(activity("Failed", told, NOW_S - 60)))
    assert pool.read(NOW_S).shortage_trouble is Trouble.QUOTA
    proxy.heal()
    proxy.add(short_of(6), activities(activity("Failed", told, NOW_S - 60)))
    assert pool.read(NOW_S + 1).shortage == ""


def test_giving_up_lowers_the_target_to_what_is_there(
    pool: AwsProvider, group: Group, proxy: FaultProxy
) -> None:
    group.create(2)
    nodes = group.members()
    proxy.add(short_of(5))
    pool.give_up(pool.read(NOW_S))
    assert proxy.calls()["SetDesiredCapacity"] == 1
    proxy.heal()
    assert (group.desired, group.running()) == (2, nodes)
    proxy.clear()
    pool.give_up(pool.read(NOW_S + 1))
    assert proxy.calls()["SetDesiredCapacity"] == 0


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (("<NewInstancesProtectedFromScaleIn>true", "<NewInstancesProtectedFromScaleIn>false"), "new nodes"),
        (("<ProtectedFromScaleIn>true", "<ProtectedFromScaleIn>false"), "i-"),
    ],
)
def test_giving_up_does_nothing_that_could_end_a_node_and_says_why(
    pool: AwsProvider, group: Group, proxy: FaultProxy, rule: tuple[str, str], why: str
) -> None:
    group.create(2)
    target = (r"<DesiredCapacity>\d+<", "<DesiredCapacity>5<")
    proxy.add(Rule(operation="DescribeAutoScalingGroups", rewrites=(target, rule)))
    pool.give_up(pool.read(NOW_S))
    assert proxy.calls()["SetDesiredCapacity"] == 0
    warned = [w for w in pool.read(NOW_S).warnings if w.startswith("the target 5 is not lowered")]
    assert len(warned) == 1
    assert why in warned[0]
    proxy.heal()
    assert pool.read(NOW_S).warnings == ()


# Hooks, protection, warnings.


def test_a_machine_that_waits_for_us_says_until_when_and_is_let_go(
    pool: AwsProvider, group: Group, proxy: FaultProxy
) -> None:
    group.create(2)
    node, other = group.members()
    for name, timeout_s in (("drain", 300), ("log", 900)):
        group.autoscaling.put_lifecycle_hook(
            AutoScalingGroupName=group.name,
            LifecycleHookName=name,
            LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
            HeartbeatTimeout=timeout_s,
        )
    proxy.add(lifecycle(node, "Terminating:Wait"), COMPLETED)
    assert named(pool.read(NOW_S), node).leaves_at_s == NOW_S + 300
    seen = pool.read(NOW_S + 100)
    assert named(seen, node).phase is InstancePhase.LEAVING
    assert named(seen, node).leaves_at_s == NOW_S + 300
    assert named(seen, other).leaves_at_s is None
    pool.let_go(node, seen)
    assert proxy.calls()["CompleteLifecycleAction"] == 2
    pool.let_go(other, seen)  # it runs: nothing holds it
    assert proxy.calls()["CompleteLifecycleAction"] == 2


@pytest.mark.parametrize(
    ("message", "is_fine"),
    [("No active Lifecycle Action found with instance ID i-1", True), ("hook name not found", False)],
)
def test_letting_go_twice_is_fine_and_other_refusals_are_not(
    pool: AwsProvider, group: Group, proxy: FaultProxy, message: str, is_fine: bool
) -> None:
    group.create(1)
    (node,) = group.members()
    group.autoscaling.put_lifecycle_hook(
        AutoScalingGroupName=group.name,
        LifecycleHookName="drain",
        LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
    )
    refused = aws_error("CompleteLifecycleAction", "ValidationError", message)
    proxy.add(lifecycle(node, "Terminating:Wait"), refused)
    seen = pool.read(NOW_S)
    if is_fine:
        pool.let_go(node, seen)
    else:
        assert refusal(lambda: pool.let_go(node, seen)).trouble is Trouble.CONFIG


def test_members_that_the_group_does_not_protect_are_protected(
    pool: AwsProvider, group: Group, proxy: FaultProxy
) -> None:
    group.create(2, protects_new=False)
    assert any("NewInstancesProtectedFromScaleIn" in w for w in pool.read(NOW_S).warnings)
    assert all(m["ProtectedFromScaleIn"] for m in group.described()["Instances"])
    pool.read(NOW_S)
    assert proxy.calls()["SetInstanceProtection"] == 1


def test_a_refused_protection_is_told_and_spoils_no_reading(
    pool: AwsProvider, group: Group, proxy: FaultProxy
) -> None:
    group.create(1, protects_new=False)
    proxy.add(aws_error("SetInstanceProtection", "AccessDenied", status=403))
    reading = pool.read(NOW_S)
    assert len(reading.instances) == 1
    assert any("AccessDenied" in w for w in reading.warnings)


def test_a_careless_group_is_told_all_that_is_wrong_with_it(pool: AwsProvider, group: Group) -> None:
    group.create(
        1,
        most=5,
        zones="ab",
        protects_new=False,
        distribution={"OnDemandPercentageAboveBaseCapacity": 50, "SpotMaxPrice": "0.5"},
        template={"InstanceMarketOptions": {"MarketType": "spot"}},
        CapacityRebalance=True,
    )
    group.autoscaling.resume_processes(AutoScalingGroupName=group.name, ScalingProcesses=["AZRebalance"])
    group.autoscaling.suspend_processes(AutoScalingGroupName=group.name, ScalingProcesses=["Launch"])
    group.autoscaling.delete_tags(
        Tags=[{"ResourceId": group.name, "ResourceType": "auto-scaling-group", "Key": "varuna:cluster"}]
    )
    reading = pool.read(NOW_S)
    said = " | ".join(reading.warnings)
    for word in (
        "AZRebalance",
        "NewInstancesProtectedFromScaleIn",
        "process Launch",
        "capacity rebalancing",
        "MaxSize 5",
        f"varuna:cluster={group.cluster}",
        "InstanceMarketOptions",
        "price-capacity-optimized",
        "SpotMaxPrice 0.5",
    ):
        assert word in said, word
    assert len(reading.warnings) == 9
    assert reading.price is None  # the next machine may be an on-demand one


def test_a_group_that_is_being_deleted_says_so(pool: AwsProvider, group: Group, proxy: FaultProxy) -> None:
    group.create(1)
    status = ("<DesiredCapacity>", "<Status>Delete in progress</Status><DesiredCapacity>")
    proxy.add(Rule(operation="DescribeAutoScalingGroups", rewrites=(status,)))
    assert [w for w in pool.read(NOW_S).warnings if "Delete in progress" in w]


def test_a_price_of_the_settings_is_not_asked(proxy: FaultProxy, calls: AwsCalls, group: Group) -> None:
    group.create(1)
    assert AwsProvider(settings(group, price=0.7), MemoryNotes(), calls).read(NOW_S).price == 0.7
    assert proxy.calls()["DescribeSpotPriceHistory"] == 0


def test_prices_are_asked_now_and_then_and_their_lack_spoils_no_reading(
    pool: AwsProvider, group: Group, proxy: FaultProxy
) -> None:
    group.create(1)
    proxy.add(aws_error("DescribeSpotPriceHistory", "UnauthorizedOperation", status=403, times=1))
    refused = pool.read(NOW_S)
    assert refused.price is None
    assert any("UnauthorizedOperation" in w for w in refused.warnings)
    assert pool.read(NOW_S + 10).price is None
    assert pool.read(NOW_S + 301).price == pytest.approx(0.00001)
    assert proxy.calls()["DescribeSpotPriceHistory"] == 2


# Notices.


def test_a_warning_is_in_the_reading_and_then_off_the_queue(
    noticing: AwsProvider, group: Group, queue: NoticesQueue
) -> None:
    group.create(2)
    node, other = group.members()
    at_s = float(int(NOW_S))
    queue.warn(node, at_s)
    queue.warn(node, at_s + 30)
    queue.warn(other, at_s, "EC2 Instance Rebalance Recommendation")
    reading = noticing.read(NOW_S)
    found = named(reading, node)
    assert (found.phase, found.leaves_at_s) == (InstancePhase.RUNNING, at_s + 120)
    assert "Spot interruption" in found.reason
    assert named(reading, other).leaves_at_s is None
    assert queue.left() == 2  # until that reading was handed over
    assert named(noticing.read(NOW_S + 1), node).leaves_at_s == at_s + 120
    assert queue.left() == 0


def test_a_warning_outlives_the_manager(
    group: Group, queue: NoticesQueue, proxy: FaultProxy, calls: AwsCalls
) -> None:
    group.create(1)
    (node,) = group.members()
    notes = MemoryNotes()
    queue.warn(node, NOW_S)
    before = AwsProvider(settings(group, notices_queue=queue.url), notes, calls)
    told = [named(before.read(NOW_S + at_s), node).leaves_at_s for at_s in (0, 1)]
    again = AwsProvider(settings(group, notices_queue=queue.url), notes, calls)
    assert [named(again.read(NOW_S + at_s), node).leaves_at_s for at_s in (60, 800)] == [told[0], None]


def test_a_warning_about_another_pool_is_left_to_it_while_it_matters(
    noticing: AwsProvider, group: Group, queue: NoticesQueue
) -> None:
    group.create(1)
    queue.warn("i-theirs", NOW_S - 20)
    queue.warn("i-theirs", NOW_S - 400)
    assert noticing.read(NOW_S).warnings == ()
    assert queue.left() == 1


def test_what_is_no_event_is_deleted_with_a_warning(
    noticing: AwsProvider, group: Group, queue: NoticesQueue
) -> None:
    group.create(1)
    queue.put("not json")
    queue.put('{"detail-type": "EC2 Spot Instance Interruption Warning"}')
    said = noticing.read(NOW_S).warnings
    assert len(said) == 2
    assert all("it was deleted" in w for w in said)
    assert queue.left() == 0
    assert noticing.read(NOW_S).warnings == ()


def test_a_queue_that_fails_spoils_no_reading(noticing: AwsProvider, group: Group, proxy: FaultProxy) -> None:
    group.create(1)
    proxy.add(json_error("ReceiveMessage", "AWS.SimpleQueueService.NonExistentQueue"))
    reading = noticing.read(NOW_S)
    assert phases(reading) == {group.members()[0]: InstancePhase.RUNNING}
    assert any("NonExistentQueue" in w for w in reading.warnings)


# Failures.


@pytest.mark.parametrize(
    ("rule", "trouble"),
    [
        (aws_error("Describe.*", "RequestLimitExceeded", status=503), Trouble.THROTTLED),
        (aws_error("Describe.*", "Throttling", "Rate exceeded"), Trouble.THROTTLED),
        (html_error("DescribeInstances"), Trouble.RETRY),
        (html_error("DescribeAutoScalingGroups", status=502), Trouble.RETRY),
        (Rule(operation="DescribeInstances", drops=True), Trouble.RETRY),
        (aws_error("Describe.*", "InternalFailure", status=500), Trouble.RETRY),
        (aws_error("DescribeInstances", "UnauthorizedOperation", status=403), Trouble.AUTH),
        (aws_error("DescribeAutoScalingGroups", "ExpiredToken", status=403), Trouble.AUTH),
    ],
    ids=lambda value: str(value) if isinstance(value, Trouble) else f"{value.operation}-{value.status}",
)
def test_m31_a_failed_reading_says_what_to_do_and_writes_nothing(
    pool: AwsProvider, group: Group, proxy: FaultProxy, rule: Rule, trouble: Trouble
) -> None:
    group.create(4, protects_new=False)
    proxy.add(rule)
    assert refusal(lambda: pool.read(NOW_S)).trouble is trouble
    assert not any(proxy.calls()[write] for write in WRITES)
    assert max(proxy.calls().values()) <= 3


@pytest.mark.parametrize("write", ["grow", "release", "give_up"])
def test_m31_a_write_that_cannot_read_first_is_not_made(
    pool: AwsProvider, group: Group, proxy: FaultProxy, write: str
) -> None:
    group.create(2)
    seen = pool.read(NOW_S)
    proxy.add(Rule(operation="DescribeAutoScalingGroups", drops=True))
    calls = {
        "grow": lambda: pool.grow(5, seen),
        "release": lambda: pool.release(group.members(), seen),
        "give_up": lambda: pool.give_up(seen),
    }
    assert refusal(calls[write]).trouble is Trouble.RETRY
    assert not any(proxy.calls()[name] for name in WRITES)


def test_credentials_that_come_later_are_found(
    group: Group, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    group.create(1)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    pool = AwsProvider(settings(group), MemoryNotes(), AwsCalls(REGION))
    assert refusal(lambda: pool.read(NOW_S)).trouble is Trouble.AUTH
    file.write_text("[default]\naws_access_key_id = testing\naws_secret_access_key = testing\n")
    assert [i.node for i in pool.read(NOW_S).instances] == group.members()


def test_how_long_to_wait_is_told(pool: AwsProvider, group: Group, proxy: FaultProxy) -> None:
    group.create(1)
    seen = pool.read(NOW_S)
    slow = Rule(
        operation=END,
        status=429,
        headers={"Retry-After": "30", "Content-Type": "text/xml"},
        body="<ErrorResponse><Error><Code>Slow</Code><Message>down</Message></Error></ErrorResponse>",
    )
    proxy.add(slow)
    refused = refusal(lambda: pool.release([seen.instances[0].node], seen))
    assert (refused.trouble, refused.retry_after_s) == (Trouble.THROTTLED, 30.0)
    assert proxy.calls()[END] == 1


@pytest.mark.parametrize(
    ("code", "trouble"),
    [
        ("ScalingActivityInProgress", Trouble.RETRY),
        ("ResourceContention", Trouble.RETRY),
        ("ValidationError", Trouble.CONFIG),
        ("AccessDenied", Trouble.AUTH),
        ("LimitExceeded", Trouble.QUOTA),
    ],
)
def test_a_refused_write_says_what_to_do(
    pool: AwsProvider, group: Group, proxy: FaultProxy, code: str, trouble: Trouble
) -> None:
    group.create(1)
    seen = pool.read(NOW_S)
    proxy.add(aws_error("SetDesiredCapacity", code))
    refused = refusal(lambda: pool.grow(2, seen))
    assert refused.trouble is trouble
    assert code in str(refused)


# The SDK.


def test_all_operations_are_named_and_none_more(
    noticing: AwsProvider, group: Group, proxy: FaultProxy, queue: NoticesQueue
) -> None:
    group.create(3, protects_new=False)
    node, leaving, _ = group.members()
    stray = group.run_stray()
    queue.warn(node, NOW_S)
    group.autoscaling.put_lifecycle_hook(
        AutoScalingGroupName=group.name,
        LifecycleHookName="drain",
        LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
    )
    proxy.add(lifecycle(leaving, "Terminating:Wait"), COMPLETED)
    seen = noticing.read(NOW_S)
    noticing.grow(4, seen)
    noticing.let_go(leaving, seen)
    noticing.release([stray, node], noticing.read(NOW_S + 1))
    assert set(proxy.calls()) == {operation.partition(":")[2] for operation in OPERATIONS}


def test_the_manager_may_do_what_it_does_and_no_more_of_it() -> None:
    documents = [
        json.loads((DEPLOY / "aws" / f"iam-manager{part}.json").read_text()) for part in ("", "-notices")
    ]
    told = [s["Action"] for document in documents for s in document["Statement"]]
    actions = {a for action in told for a in ([action] if isinstance(action, str) else action)}
    ours = {a for a in actions if a.partition(":")[0] in ("autoscaling", "ec2", "sqs")}
    assert ours == set(OPERATIONS)


def test_the_sdk_is_asked_for_by_name_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(InvalidInput, match=r"pip install 'varuna\[aws\]'"):
        open_aws(AwsPool(name="a", provider="aws", group="g", region=REGION), notes=MemoryNotes())


def test_a_pool_is_opened_without_loading_the_sdk() -> None:
    program = (
        "import sys; from varuna_manager.cloud.aws import open_aws;"
        "from varuna_manager.pool_settings import AwsPool;"
        "from tests.support.notes import MemoryNotes;"
        "open_aws(AwsPool(name='a', provider='aws', group='g', region='r'), notes=MemoryNotes());"
        "sys.exit('botocore' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=60, cwd=DEPLOY.parent)
    assert done.returncode == 0
