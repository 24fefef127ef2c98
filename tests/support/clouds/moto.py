"""A real AWS endpoint on loopback: a moto server process, and the few resources that our tests need in it."""

import base64
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import boto3
import stamina
from botocore.parsers import ResponseParserError

REGION = "us-east-1"
IDENTITY = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""Environment of whoever talks to it, besides AWS_ENDPOINT_URL."""
_START_S = 60.0
_IMAGE = "ami-03cf127a"  # of those that moto has from the start
# A request that meets another one's change in the middle is answered by a page of HTML.
_again = stamina.retry(on=ResponseParserError, attempts=5, wait_initial=0.05)


class Moto:
    """A moto server on a free port of its own; a context manager."""

    def __init__(self) -> None:
        self.url = ""
        self._session = boto3.session.Session(
            aws_access_key_id=IDENTITY["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=IDENTITY["AWS_SECRET_ACCESS_KEY"],
            region_name=REGION,
        )
        self._clients: dict[str, Any] = {}

    def __enter__(self) -> "Moto":
        self._folder = tempfile.TemporaryDirectory(prefix="varuna-moto-")
        log = Path(self._folder.name) / "log"
        with log.open("wb") as output:
            command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            self.url = self._announced(log)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def reset(self) -> None:
        """Empty the cloud."""
        request = urllib.request.Request(f"{self.url}/moto-api/reset", method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()

    def client(self, service: str) -> Any:
        """Return a client that talks to it directly; always the same one: it takes a while to make."""
        if service not in self._clients:
            self._clients[service] = self._session.client(service, endpoint_url=self.url)
        return self._clients[service]

    def _announced(self, log: Path) -> str:
        deadline = time.monotonic() + _START_S
        while not (found := re.search(r"Running on (http://127\.0\.0\.1:\d+)", log.read_text())):
            assert self._process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "moto never came up"
            time.sleep(0.02)
        return found[1]

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


class Group:
    """An Auto Scaling group of Spot machines, set up as our operator guide asks unless told otherwise."""

    def __init__(self, moto: Moto, name: str = "pool", *, cluster: str = "varuna") -> None:
        self.name = name
        self.cluster = cluster
        self.moto = moto
        self.autoscaling = moto.client("autoscaling")
        self.ec2 = moto.client("ec2")

    def create(
        self,
        desired: int = 0,
        *,
        least: int = 0,
        most: int = 10,
        kinds: tuple[str, ...] = ("g4dn.xlarge",),
        zones: str = "a",
        user_data: str = "",
        on_demand_percentage: int = 0,
        protects_new: bool = True,
        distribution: dict[str, object] | None = None,
        template: dict[str, object] | None = None,
        **more: object,
    ) -> "Group":
        """Create its launch template and the group itself."""
        data = {"ImageId": _IMAGE, "InstanceType": kinds[0], **(template or {})}
        if user_data:
            data["UserData"] = base64.b64encode(user_data.encode()).decode()
        self.ec2.create_launch_template(LaunchTemplateName=self.name, LaunchTemplateData=data)
        spread = {
            "OnDemandBaseCapacity": 0,
            "OnDemandPercentageAboveBaseCapacity": on_demand_percentage,
            "SpotAllocationStrategy": "price-capacity-optimized",
        }
        self.autoscaling.create_auto_scaling_group(
            AutoScalingGroupName=self.name,
            MinSize=least,
            MaxSize=most,
            DesiredCapacity=desired,
            AvailabilityZones=[f"{REGION}{zone}" for zone in zones],
            NewInstancesProtectedFromScaleIn=protects_new,
            MixedInstancesPolicy={
                "LaunchTemplate": {
                    "LaunchTemplateSpecification": {"LaunchTemplateName": self.name, "Version": "$Latest"},
                    "Overrides": [{"InstanceType": kind} for kind in kinds],
                },
                "InstancesDistribution": spread if distribution is None else distribution,
            },
            Tags=[
                {
                    "ResourceId": self.name,
                    "ResourceType": "auto-scaling-group",
                    "Key": "varuna:cluster",
                    "Value": self.cluster,
                    "PropagateAtLaunch": True,
                }
            ],
            **more,
        )
        self.autoscaling.suspend_processes(AutoScalingGroupName=self.name, ScalingProcesses=["AZRebalance"])
        return self

    @property
    def desired(self) -> int:
        return int(self.described()["DesiredCapacity"])

    @_again
    def described(self) -> dict[str, Any]:
        """Return what the group says of itself."""
        found = self.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[self.name])
        group: dict[str, Any] = found["AutoScalingGroups"][0]
        return group

    def members(self) -> list[str]:
        """Return the ids of its members, sorted."""
        return sorted(member["InstanceId"] for member in self.described()["Instances"])

    @_again
    def running(self) -> list[str]:
        """Return the ids of every running machine of this cluster, in a group or not, sorted."""
        filters = [
            {"Name": "instance-state-name", "Values": ["running", "pending"]},
            {"Name": "tag:varuna:cluster", "Values": [self.cluster]},
        ]
        pages = self.ec2.get_paginator("describe_instances").paginate(Filters=filters)
        return sorted(i["InstanceId"] for page in pages for r in page["Reservations"] for i in r["Instances"])

    def launched_at_s(self, node: str) -> float:
        """Return when a machine was launched, in Unix seconds."""
        found = self.ec2.describe_instances(InstanceIds=[node])["Reservations"][0]["Instances"][0]
        return float(found["LaunchTime"].timestamp())

    def preempt(self, node: str) -> None:
        """End a machine behind the group's back, as the market does; the group replaces it at once."""
        self.ec2.terminate_instances(InstanceIds=[node])

    def run_stray(self, **tags: str) -> str:
        """Run a machine outside every group that carries our tag."""
        carried = {"varuna:cluster": self.cluster, **tags}
        run = self.ec2.run_instances(
            ImageId=_IMAGE,
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[
                {"ResourceType": "instance", "Tags": [{"Key": k, "Value": v} for k, v in carried.items()]}
            ],
        )
        return str(run["Instances"][0]["InstanceId"])


class NoticesQueue:
    """An SQS queue that EventBridge fills with what EC2 says about its machines."""

    def __init__(self, moto: Moto, name: str = "notices") -> None:
        self._name = name
        self._sqs = moto.client("sqs")
        self._events = moto.client("events")
        self.url = self._sqs.create_queue(QueueName=name)["QueueUrl"]
        attributes = self._sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["QueueArn"])
        self._events.put_rule(Name=name, EventPattern=json.dumps({"source": ["aws.ec2"]}))
        target = {"Id": name, "Arn": attributes["Attributes"]["QueueArn"]}
        self._events.put_targets(Rule=name, Targets=[target])

    def warn(
        self,
        node: str,
        at_s: float,
        kind: str = "EC2 Spot Instance Interruption Warning",
        action: str = "terminate",
    ) -> None:
        """Say through EventBridge that EC2 announced something of `node` at Unix time `at_s`."""
        entry = {
            "Source": "aws.ec2",
            "DetailType": kind,
            "Time": datetime.fromtimestamp(at_s, UTC),
            "Detail": json.dumps({"instance-id": node, "instance-action": action}),
        }
        put = self._events.put_events(Entries=[entry])
        assert put["FailedEntryCount"] == 0, put

    def put(self, body: str) -> None:
        """Put any message there, as somebody else might."""
        self._sqs.send_message(QueueUrl=self.url, MessageBody=body)

    def close(self) -> None:
        """Stop filling it, and delete it."""
        self._events.remove_targets(Rule=self._name, Ids=[self._name])
        self._events.delete_rule(Name=self._name)
        self._sqs.delete_queue(QueueUrl=self.url)

    def left(self) -> int:
        """Return how many messages are there, those being handled included."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self._sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        return sum(int(found["Attributes"][name]) for name in names)
