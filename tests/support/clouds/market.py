"""The market behind an Auto Scaling group: moto always delivers, so a proxy hides what it has no stock of."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from xml.etree import ElementTree as Xml

from tests.support.clouds.fault_proxy import FaultProxy
from tests.support.clouds.moto import Group, Moto

_KIND = "g4dn.xlarge"
_EMPTY = (
    f"We currently do not have sufficient {_KIND} capacity in the Availability Zone you requested "
    "(us-east-1a). Our system will be working on provisioning additional capacity. "
    "Launching EC2 instance failed."
)
_ACTIVITIES = (
    '<DescribeScalingActivitiesResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/">'
    "<DescribeScalingActivitiesResult><Activities>{}</Activities></DescribeScalingActivitiesResult>"
    "<ResponseMetadata><RequestId>market</RequestId></ResponseMetadata></DescribeScalingActivitiesResponse>"
)


class Market(FaultProxy):
    """A fault proxy before moto that shows no machine beyond `stock`; None: there is enough.

    Machines beyond it exist in moto but are hidden from whoever asks through the proxy, and `settle` tells
    which ones are really there. Once given, a machine stays until it ends.
    """

    def __init__(self, moto: Moto) -> None:
        super().__init__(moto.url)
        self.stock: int | None = None
        self._given: dict[str, None] = {}
        self._is_short = False

    def settle(self, group: Group) -> list[str]:
        """Give out machines while there is stock; return those that run, the oldest first."""
        running = group.running()
        living = [node for node in self._given if node in running]
        waiting = [node for node in running if node not in self._given]
        members = group.described()
        for node in waiting:
            if node not in {m["InstanceId"] for m in members["Instances"]}:
                self._given[node] = None  # no group asked for it, so nobody could have been refused
            elif self.stock is None or len(living) < self.stock:
                self._given[node] = None
                living.append(node)
        hidden = [node for node in waiting if node not in self._given]
        for node in hidden[: max(0, len(members["Instances"]) - members["DesiredCapacity"])]:
            group.autoscaling.terminate_instance_in_auto_scaling_group(
                InstanceId=node, ShouldDecrementDesiredCapacity=False
            )
        self._is_short = bool(hidden)
        return [node for node in self._given if node in running]

    def serve(self, call):  # type: ignore[no-untyped-def]
        """Answer as moto does, less what is hidden."""
        answer = super().serve(call)
        if answer is None or answer.status != 200:
            return answer
        if call.operation == "DescribeScalingActivities" and self._is_short:
            return replace(answer, body=_failed_launch(call.text))
        if call.operation in ("DescribeAutoScalingGroups", "DescribeInstances"):
            return replace(answer, body=_without_hidden(answer.body, tuple(self._given)))
        return answer


def _without_hidden(body: bytes, given: Sequence[str]) -> bytes:
    """Drop each list entry about a machine that was not given; a group's own entry has no InstanceId."""
    root = Xml.fromstring(body)
    for parent in list(root.iter()):
        for entry in list(parent):
            node = next((c.text for c in entry if _name(c).lower() == "instanceid"), None)
            if _name(entry) in ("member", "item") and node is not None and node not in given:
                parent.remove(entry)
    return Xml.tostring(root)


def _name(element: Xml.Element) -> str:
    return element.tag.rpartition("}")[2]


def _failed_launch(_: str) -> bytes:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    fields = {
        "ActivityId": "a1",
        "AutoScalingGroupName": "pool",
        "Description": f"Launching a new EC2 instance.  Status Reason: {_EMPTY}",
        "Cause": "An instance was started in response to a difference between desired and actual capacity.",
        "StartTime": now,
        "EndTime": now,
        "StatusCode": "Failed",
        "StatusMessage": _EMPTY,
        "Progress": "100",
    }
    member = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
    return _ACTIVITIES.format(f"<member>{member}</member>").encode()
