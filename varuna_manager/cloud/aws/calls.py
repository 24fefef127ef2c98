"""Every call of the AWS SDK that we make, with its retries, pages and errors; it judges nothing."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

from varuna_manager.cloud.aws.faults import translated
from varuna_manager.cloud.provider import ProviderError, Trouble

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.config import Config
    from mypy_boto3_autoscaling import AutoScalingClient
    from mypy_boto3_autoscaling.type_defs import (
        ActivityTypeDef,
        AutoScalingGroupTypeDef,
        AutoScalingInstanceDetailsTypeDef,
        LifecycleHookTypeDef,
    )
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import InstanceTypeDef, ResponseLaunchTemplateDataTypeDef, SpotPriceTypeDef
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import MessageTypeDef

OPERATIONS = (
    "autoscaling:CompleteLifecycleAction",
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeAutoScalingInstances",
    "autoscaling:DescribeLifecycleHooks",
    "autoscaling:DescribeScalingActivities",
    "autoscaling:SetDesiredCapacity",
    "autoscaling:SetInstanceProtection",
    "autoscaling:TerminateInstanceInAutoScalingGroup",
    "ec2:DescribeInstances",
    "ec2:DescribeLaunchTemplateVersions",
    "ec2:DescribeSpotPriceHistory",
    "ec2:TerminateInstances",
    "sqs:DeleteMessage",
    "sqs:ReceiveMessage",
)
"""All that the manager's role must be allowed; the two of SQS only with a `notices_queue`."""

_IDS_A_CALL = 50  # of DescribeAutoScalingInstances and SetInstanceProtection
_ACTIVITIES = 20  # newest first
_VISIBILITY_S = 20  # a message that we leave for others, or crash with, is there again after this
_NOTICE_WAIT_S = 1  # asks every server of the queue; without a wait only some of them


class AwsCalls:
    """The calls to one region, over one session. Not to be used by two threads at once.

    Raises ProviderError for whatever goes wrong; `page_size` is 5 to 1000.
    """

    def __init__(self, region: str, *, page_size: int = 1000) -> None:
        self._region = region
        self._page_size = page_size

    def group(self, name: str) -> "AutoScalingGroupTypeDef":
        """Return the group; CONFIG when there is none of that name."""
        with translated("DescribeAutoScalingGroups"):
            found = self._autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])
        if not found["AutoScalingGroups"]:
            raise ProviderError(
                f"no Auto Scaling group {name} in {self._region}; create it, or correct `group` and `region`",
                trouble=Trouble.CONFIG,
            )
        return found["AutoScalingGroups"][0]

    def machines(self, tag: str, value: str) -> "list[InstanceTypeDef]":
        """Return every machine that carries this tag, those that ended within the last hour included."""
        with translated("DescribeInstances"):
            pages = self._ec2.get_paginator("describe_instances").paginate(
                Filters=[{"Name": f"tag:{tag}", "Values": [value]}],
                PaginationConfig={"PageSize": self._page_size},
            )
            return [
                machine
                for page in pages
                for reservation in page["Reservations"]
                for machine in reservation.get("Instances", [])
                if {"Key": tag, "Value": value} in machine.get("Tags", [])  # AWS takes * and ? as patterns
            ]

    def memberships(self, nodes: Sequence[str]) -> "dict[str, AutoScalingInstanceDetailsTypeDef]":
        """Return those of these machines that belong to any group, by id."""
        found: dict[str, AutoScalingInstanceDetailsTypeDef] = {}
        for part in _parts(nodes):
            with translated("DescribeAutoScalingInstances"):
                answer = self._autoscaling.describe_auto_scaling_instances(InstanceIds=part)
            found |= {detail["InstanceId"]: detail for detail in answer["AutoScalingInstances"]}
        return found

    def activities(self, group: str) -> "list[ActivityTypeDef]":
        """Return what the group did last, newest first."""
        with translated("DescribeScalingActivities"):
            return self._autoscaling.describe_scaling_activities(
                AutoScalingGroupName=group, MaxRecords=_ACTIVITIES
            )["Activities"]

    def terminate_hooks(self, group: str) -> "list[LifecycleHookTypeDef]":
        """Return the hooks that hold a machine before it ends."""
        with translated("DescribeLifecycleHooks"):
            hooks = self._autoscaling.describe_lifecycle_hooks(AutoScalingGroupName=group)["LifecycleHooks"]
        return [h for h in hooks if h.get("LifecycleTransition") == "autoscaling:EC2_INSTANCE_TERMINATING"]

    def template(self, template_id: str, version: str) -> "ResponseLaunchTemplateDataTypeDef | None":
        """Return one version of a launch template."""
        with translated("DescribeLaunchTemplateVersions"):
            found = self._ec2.describe_launch_template_versions(
                LaunchTemplateId=template_id, Versions=[version]
            )["LaunchTemplateVersions"]
        return found[0].get("LaunchTemplateData") if found else None

    def spot_prices(self, kinds: Sequence[str], now_s: float) -> "list[SpotPriceTypeDef]":
        """Return the present Spot prices of these instance types in every zone."""
        with translated("DescribeSpotPriceHistory"):
            pages = self._ec2.get_paginator("describe_spot_price_history").paginate(
                Filters=[{"Name": "instance-type", "Values": kinds}],
                ProductDescriptions=["Linux/UNIX"],
                StartTime=datetime.fromtimestamp(now_s, UTC),
                PaginationConfig={"PageSize": self._page_size},
            )
            return [price for page in pages for price in page["SpotPriceHistory"]]

    def set_desired(self, group: str, desired: int) -> None:
        """Set the target of the group; absolute, so that the SDK may repeat it."""
        with translated("SetDesiredCapacity"):
            self._autoscaling.set_desired_capacity(
                AutoScalingGroupName=group, DesiredCapacity=desired, HonorCooldown=False
            )

    def end_member(self, node: str, *, lowers: bool) -> None:
        """End a member, and lower the target with it; one that is no member any more is fine.

        Asked once: a repeat by the SDK, when the answer was lost, could lower the target twice.
        """
        with translated("TerminateInstanceInAutoScalingGroup", fine=("Instance Id not found",)):
            self._autoscaling_once.terminate_instance_in_auto_scaling_group(
                InstanceId=node, ShouldDecrementDesiredCapacity=lowers
            )

    def end_machine(self, node: str) -> None:
        """End a machine that belongs to no group; one that EC2 has forgotten is fine."""
        with translated("TerminateInstances", fine=("InvalidInstanceID.NotFound",)):
            self._ec2.terminate_instances(InstanceIds=[node])

    def protect(self, group: str, nodes: Sequence[str]) -> None:
        """Protect members from scale-in."""
        for part in _parts(nodes):
            with translated("SetInstanceProtection"):
                self._autoscaling.set_instance_protection(
                    AutoScalingGroupName=group, InstanceIds=part, ProtectedFromScaleIn=True
                )

    def complete(self, group: str, hook: str, node: str) -> None:
        """Let a machine pass a hook; one that does not wait there is fine."""
        with translated("CompleteLifecycleAction", fine=("No active Lifecycle Action",)):
            self._autoscaling.complete_lifecycle_action(
                AutoScalingGroupName=group,
                LifecycleHookName=hook,
                InstanceId=node,
                LifecycleActionResult="CONTINUE",
            )

    def receive(self, queue: str) -> "list[MessageTypeDef]":
        """Take at most ten messages; others do not see them for some seconds."""
        with translated("ReceiveMessage"):
            return self._sqs.receive_message(
                QueueUrl=queue,
                MaxNumberOfMessages=10,
                WaitTimeSeconds=_NOTICE_WAIT_S,
                VisibilityTimeout=_VISIBILITY_S,
            ).get("Messages", [])

    def delete(self, queue: str, receipt: str) -> None:
        """Delete a message; one that is gone already is fine."""
        with translated("DeleteMessage"):
            self._sqs.delete_message(QueueUrl=queue, ReceiptHandle=receipt)

    @cached_property
    def _session(self) -> "Session":
        from boto3.session import Session

        return Session(region_name=self._region)

    @property
    def _signing(self) -> "Session":
        """Return the session if there are credentials: a client that began without never looks again."""
        from botocore.exceptions import NoCredentialsError

        if self._session.get_credentials() is None:
            raise NoCredentialsError
        return self._session

    @cached_property
    def _autoscaling(self) -> "AutoScalingClient":
        return self._signing.client("autoscaling", config=_config(attempts=3))

    @cached_property
    def _autoscaling_once(self) -> "AutoScalingClient":
        return self._signing.client("autoscaling", config=_config(attempts=1))

    @cached_property
    def _ec2(self) -> "EC2Client":
        return self._signing.client("ec2", config=_config(attempts=3))

    @cached_property
    def _sqs(self) -> "SQSClient":
        return self._signing.client("sqs", config=_config(attempts=3))


def _config(*, attempts: int) -> "Config":
    """Return explicit limits: the SDK's own retries changed from one release to the next."""
    from botocore.config import Config

    return Config(
        retries={"mode": "standard", "total_max_attempts": attempts}, connect_timeout=5, read_timeout=30
    )


def _parts(nodes: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(nodes), _IDS_A_CALL):
        yield nodes[start : start + _IDS_A_CALL]
