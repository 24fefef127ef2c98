"""What AWS says, judged without asking it."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.notes import MemoryNotes
from varuna_manager.cloud.aws import advice, machines, price
from varuna_manager.cloud.aws.faults import shortage_trouble, trouble_of
from varuna_manager.cloud.aws.notices import Notice, parse
from varuna_manager.cloud.aws.settling import Settling
from varuna_manager.cloud.aws.shortage import shortage
from varuna_manager.cloud.aws.times import Times
from varuna_manager.cloud.provider import InstancePhase, Market, Trouble
from varuna_manager.pool_settings import AwsPool

NOW_S = 1_800_000_000.0


def moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)


def machine(state: str, **more: object) -> Any:
    return {"InstanceId": "i-1", "State": {"Name": state}, **more}


def member(lifecycle: str) -> Any:
    return {
        "InstanceId": "i-1",
        "InstanceType": "g5.xlarge",
        "AvailabilityZone": "eu-west-1b",
        "LifecycleState": lifecycle,
        "ProtectedFromScaleIn": True,
    }


def launch(status: str, message: str = "", at_s: float = NOW_S, does: str = "Launching a new") -> Any:
    return {
        "Description": f"{does} EC2 instance",
        "StatusCode": status,
        "StatusMessage": message,
        "StartTime": moment(at_s),
    }


@pytest.mark.parametrize(
    ("code", "status", "trouble"),
    [
        ("RequestLimitExceeded", 503, Trouble.THROTTLED),
        ("Throttling", 400, Trouble.THROTTLED),
        ("ThrottlingException", 400, Trouble.THROTTLED),
        ("Whatever", 429, Trouble.THROTTLED),
        ("UnauthorizedOperation", 403, Trouble.AUTH),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", 400, Trouble.AUTH),
        ("AccessDeniedException", 400, Trouble.AUTH),
        ("com.amazonaws.sqs#AccessDenied", 400, Trouble.AUTH),
        ("Whatever", 403, Trouble.AUTH),
        ("VcpuLimitExceeded", 400, Trouble.QUOTA),
        ("MaxSpotInstanceCountExceeded", 400, Trouble.QUOTA),
        ("LimitExceededFault", 400, Trouble.QUOTA),
        ("Server.InsufficientInstanceCapacity", 500, Trouble.CAPACITY),
        ("UnfulfillableCapacity", 400, Trouble.CAPACITY),
        ("ScalingActivityInProgressFault", 400, Trouble.RETRY),
        ("ResourceContention", 400, Trouble.RETRY),
        ("InternalError", 500, Trouble.RETRY),
        ("Whatever", 502, Trouble.RETRY),
        ("ValidationError", 400, Trouble.CONFIG),
        ("InvalidLaunchTemplateId.NotFound", 400, Trouble.CONFIG),
        ("AWS.SimpleQueueService.NonExistentQueue", 400, Trouble.CONFIG),
        ("com.amazonaws.sqs#QueueDoesNotExist", 400, Trouble.CONFIG),
        ("Whatever", 400, Trouble.UNKNOWN),
        ("", 0, Trouble.UNKNOWN),
    ],
)
def test_every_code_has_a_kind(code: str, status: int, trouble: Trouble) -> None:
    assert trouble_of(code, status) is trouble


@pytest.mark.parametrize(
    ("message", "trouble"),
    [
        ("Could not launch Spot Instances. InsufficientInstanceCapacity - There is none.", Trouble.CAPACITY),
        (
            "We currently do not have sufficient g5.xlarge capacity in the zone you asked for.",
            Trouble.CAPACITY,
        ),
        ("SpotMaxPriceTooLow - Your Spot request price of 0.1 is lower than the minimum.", Trouble.CAPACITY),
        ("MaxSpotInstanceCountExceeded - Max spot instance count exceeded.", Trouble.QUOTA),
        (
            "You have requested more vCPU capacity than your current vCPU limit of 8 allows.",
            Trouble.QUOTA,
        ),
        ("InsufficientFreeAddressesInSubnet: there are none left.", Trouble.QUOTA),
        ("The image id '[ami-1]' does not exist. Launching EC2 instance failed.", Trouble.CONFIG),
        ("Invalid IAM Instance Profile name. Launching EC2 instance failed.", Trouble.CONFIG),
        ("You are not authorized to perform this operation. Launching EC2 instance failed.", Trouble.AUTH),
        ("Something else.", Trouble.UNKNOWN),
    ],
)
def test_the_prose_of_a_failed_launch_has_a_kind(message: str, trouble: Trouble) -> None:
    assert shortage_trouble(message) is trouble


@pytest.mark.parametrize(
    ("activities", "told"),
    [
        ([], ""),
        ([launch("Failed", "no luck")], "no luck"),
        ([launch("InProgress"), launch("Failed", "no luck")], "no luck"),
        ([launch("Failed", "newest"), launch("Failed", "older")], "newest"),
        ([launch("Successful"), launch("Failed", "no luck")], ""),
        ([launch("Failed", "no luck", NOW_S - 100)], ""),
        ([launch("Failed", "hook", does="Terminating")], ""),
        ([launch("Cancelled")], "a launch ended as Cancelled"),
        ([launch("WaitingForSpotInstanceId")], ""),
    ],
)
def test_the_newest_failure_since_the_last_success_is_why_machines_lack(
    activities: list[Any], told: str
) -> None:
    assert shortage(activities, NOW_S - 90, NOW_S)[0] == told


def test_a_long_wait_for_the_spot_market_is_a_lack_of_capacity() -> None:
    told = shortage([launch("PendingSpotBidPlacement", at_s=NOW_S - 200)], NOW_S - 900, NOW_S)
    assert told == ("the group waits for the Spot market (PendingSpotBidPlacement)", Trouble.CAPACITY)


@pytest.mark.parametrize(
    ("lifecycle", "state", "phase"),
    [
        ("Pending", "pending", InstancePhase.STARTING),
        ("Pending:Wait", "running", InstancePhase.STARTING),
        ("InService", "pending", InstancePhase.STARTING),
        ("InService", "running", InstancePhase.RUNNING),
        ("InService", "shutting-down", InstancePhase.LEAVING),
        ("InService", "terminated", InstancePhase.GONE),
        ("InService", "stopped", InstancePhase.STOPPED),
        ("InService", "rebooting", InstancePhase.STARTING),
        ("Standby", "running", InstancePhase.STOPPED),
        ("Standby", "terminated", InstancePhase.GONE),
        ("Terminating:Wait", "running", InstancePhase.LEAVING),
        ("Terminating:Retained", "running", InstancePhase.LEAVING),
        ("Terminated", "running", InstancePhase.LEAVING),
        ("Terminated", "terminated", InstancePhase.GONE),
        ("Unheard:Of", "running", InstancePhase.RUNNING),
    ],
)
def test_a_member_is_what_its_group_and_ec2_say_together(
    lifecycle: str, state: str, phase: InstancePhase
) -> None:
    found = machines.member_of(member(lifecycle), machine(state))
    assert found.phase is phase
    assert bool(found.reason) == (phase not in (InstancePhase.STARTING, InstancePhase.RUNNING))


@pytest.mark.parametrize(
    ("lifecycle", "phase"),
    [
        ("Pending", InstancePhase.STARTING),
        ("InService", InstancePhase.STARTING),
        ("Unheard:Of", InstancePhase.STARTING),
        ("Terminating", InstancePhase.LEAVING),
        ("Terminated", InstancePhase.GONE),
    ],
)
def test_a_member_that_ec2_does_not_list_is_what_its_group_says(lifecycle: str, phase: InstancePhase) -> None:
    found = machines.member_of(member(lifecycle), None)
    assert (found.phase, found.zone, found.kind) == (phase, "eu-west-1b", "g5.xlarge")


def test_a_machine_is_told_with_all_that_ec2_knows() -> None:
    found = machines.alone(
        machine(
            "terminated",
            LaunchTime=moment(NOW_S),
            Placement={"AvailabilityZone": "eu-west-1a"},
            InstanceType="g5.xlarge",
            InstanceLifecycle="spot",
            StateReason={"Code": "Server.SpotInstanceTermination", "Message": "Spot instance termination"},
        )
    )
    assert (found.since_s, found.zone, found.kind, found.market) == (
        NOW_S,
        "eu-west-1a",
        "g5.xlarge",
        Market.SPOT,
    )
    assert found.reason == "Server.SpotInstanceTermination: Spot instance termination"


def group(**more: object) -> Any:
    return {"AvailabilityZones": ["a"], "MinSize": 0, "MaxSize": 10, "Instances": [], **more}


def mixed(distribution: dict[str, object], *overrides: dict[str, str]) -> Any:
    return group(
        MixedInstancesPolicy={
            "LaunchTemplate": {"LaunchTemplateSpecification": {}, "Overrides": list(overrides)},
            "InstancesDistribution": distribution,
        }
    )


@pytest.mark.parametrize(
    ("described", "num_alive", "kinds"),
    [
        (
            mixed({"OnDemandPercentageAboveBaseCapacity": 0}, {"InstanceType": "b"}, {"InstanceType": "a"}),
            0,
            "ab",
        ),
        (mixed({"OnDemandPercentageAboveBaseCapacity": 0}), 0, "t"),
        (mixed({"OnDemandPercentageAboveBaseCapacity": 0, "OnDemandBaseCapacity": 2}), 1, ""),
        (mixed({"OnDemandPercentageAboveBaseCapacity": 0, "OnDemandBaseCapacity": 2}), 2, "t"),
        (mixed({"OnDemandPercentageAboveBaseCapacity": 20}), 9, ""),
        (mixed({"OnDemandPercentageAboveBaseCapacity": 0}, {"InstanceRequirements": {}}), 0, ""),
        (mixed({}), 0, ""),  # all on demand, unless told otherwise
        (group(), 0, ""),
    ],
)
def test_the_types_of_the_next_spot_machine_are_known_only_if_it_is_one(
    described: Any, num_alive: int, kinds: str
) -> None:
    assert advice.spot_kinds(described, {"InstanceType": "t"}, num_alive) == tuple(kinds)  # type: ignore[typeddict-item]


def test_a_template_that_asks_for_spot_makes_spot_machines() -> None:
    template: Any = {"InstanceType": "t", "InstanceMarketOptions": {"MarketType": "spot"}}
    assert advice.spot_kinds(group(), template, 0) == ("t",)
    assert advice.spot_kinds(group(), None, 0) == ()


@pytest.mark.parametrize(
    ("described", "is_weighted"),
    [
        (group(), False),
        (mixed({}, {"WeightedCapacity": "1"}), False),
        (mixed({}, {"WeightedCapacity": "4"}, {"InstanceType": "a"}), True),
        (group(DesiredCapacityType="units"), False),
        (group(DesiredCapacityType="vcpu"), True),
    ],
)
def test_a_group_that_counts_anything_but_machines_is_found(described: Any, is_weighted: bool) -> None:
    assert advice.is_weighted(described) is is_weighted


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"WarmPoolConfiguration": {"MinSize": 1}}, "warm pool"),
        ({"Instances": [member("Terminating:Retained")]}, "i-1: kept by the group"),
        ({"SuspendedProcesses": [{"ProcessName": "Terminate"}]}, "process Terminate"),
        ({"AvailabilityZones": ["a", "b"]}, "AZRebalance"),
        ({"MaxSize": 3}, "MaxSize 3"),
        ({"MaxInstanceLifetime": 604800}, "MaxInstanceLifetime"),
    ],
)
def test_a_setting_that_a_person_should_change_is_told_once(more: dict[str, object], words: str) -> None:
    settings = AwsPool(name="p", provider="aws", group="g", region="r", max=10)
    tag = {"Key": "varuna:cluster", "Value": "varuna", "PropagateAtLaunch": True}
    good = {"NewInstancesProtectedFromScaleIn": True, "Tags": [tag]}
    assert advice.advice(group(**good), None, settings) == ()
    told = advice.advice(group(**{**good, **more}), None, settings)
    assert len(told) == 1
    assert words in told[0]


def test_the_price_is_the_dearest_of_the_newest_in_the_zones_of_the_group() -> None:
    def told(kind: str, zone: str, dollars: str, at_s: float) -> Any:
        return {
            "InstanceType": kind,
            "AvailabilityZone": zone,
            "SpotPrice": dollars,
            "Timestamp": moment(at_s),
        }

    prices = [
        told("g5", "a", "0.9", 1),  # an older one
        told("g5", "a", "0.3", 2),
        told("g6", "a", "0.4", 1),
        told("g6", "c", "7.0", 2),  # another zone
    ]
    assert price.dearest(prices, {"a", "b"}) == 0.4
    assert price.dearest(prices, {"d"}) is None


def event(**more: object) -> str:
    told: dict[str, object] = {
        "detail-type": "EC2 Spot Instance Interruption Warning",
        "time": "2027-01-15T08:00:00Z",
        "detail": {"instance-id": "i-1", "instance-action": "terminate"},
    }
    return json.dumps({**told, **more})


@pytest.mark.parametrize(("action", "notice_s"), [("terminate", 120), ("stop", 120), ("hibernate", 0)])
def test_a_warning_says_when_its_machine_ends(action: str, notice_s: float) -> None:
    body = event(detail={"instance-id": "i-1", "instance-action": action})
    expected = Notice(node="i-1", given_at_s=NOW_S, ends_at_s=NOW_S + notice_s)
    assert parse(body) == expected


def test_other_events_are_no_warnings() -> None:
    assert parse(event(**{"detail-type": "EC2 Instance Rebalance Recommendation"})) is None


@pytest.mark.parametrize(
    "body", ["", "no", "[]", "{}", event(time="noon"), event(detail={}), event(detail=3)]
)
def test_what_is_no_event_is_refused(body: str) -> None:
    with pytest.raises(ValueError, match="no event of EventBridge"):
        parse(body)


def test_a_write_is_under_way_until_it_shows_or_a_minute_has_passed() -> None:
    settling = Settling()
    assert settling.is_over(1, NOW_S)
    settling.wrote(3, NOW_S)
    assert not settling.is_over(1, NOW_S + 59)
    assert settling.is_over(3, NOW_S + 59)
    assert settling.is_over(1, NOW_S + 59)  # somebody lowered it after it had shown
    settling.wrote(3, NOW_S)
    assert settling.is_over(1, NOW_S + 60)


def test_a_write_without_an_answer_is_under_way_for_a_while_whatever_shows() -> None:
    settling = Settling()
    settling.unanswered(NOW_S)
    assert [settling.is_over(n, NOW_S + 14) for n in (1, 3)] == [False, False]
    assert settling.is_over(1, NOW_S + 15)


def test_times_are_kept_and_written_only_when_they_change() -> None:
    notes = MemoryNotes()
    times = Times(notes, "k")
    times.put({})
    assert notes.texts == {}
    times.put({"i-1": 3.5})
    assert Times(notes, "k").get() == {"i-1": 3.5}
