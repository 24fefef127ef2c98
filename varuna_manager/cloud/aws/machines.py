"""From what Auto Scaling and EC2 say of a machine to our `Instance`; pure."""

from typing import TYPE_CHECKING

from varuna_manager.cloud.provider import Instance, InstancePhase, Market

if TYPE_CHECKING:
    from mypy_boto3_autoscaling.type_defs import AutoScalingGroupTypeDef, AutoScalingInstanceDetailsTypeDef
    from mypy_boto3_autoscaling.type_defs import InstanceTypeDef as MemberTypeDef
    from mypy_boto3_ec2.type_defs import InstanceTypeDef

GROUP_TAG = "aws:autoscaling:groupName"
CLUSTER_TAG = "varuna:cluster"

# Auto Scaling may add states at any time: of one that is not here, EC2's own state decides.
_BY_LIFECYCLE = {
    "Pending": InstancePhase.STARTING,
    "Pending:Wait": InstancePhase.STARTING,
    "Pending:Proceed": InstancePhase.STARTING,
    "EnteringStandby": InstancePhase.STOPPED,
    "Standby": InstancePhase.STOPPED,
    "Terminating": InstancePhase.LEAVING,
    "Terminating:Wait": InstancePhase.LEAVING,
    "Terminating:Proceed": InstancePhase.LEAVING,
    "Terminating:Retained": InstancePhase.LEAVING,
    "Terminated": InstancePhase.LEAVING,
}
_BY_STATE = {
    "pending": InstancePhase.STARTING,
    "running": InstancePhase.RUNNING,
    "shutting-down": InstancePhase.LEAVING,
    "terminated": InstancePhase.GONE,
    "stopping": InstancePhase.STOPPED,
    "stopped": InstancePhase.STOPPED,
}
_ENDED = ("shutting-down", "terminated")


def members_by_id(group: "AutoScalingGroupTypeDef") -> "dict[str, MemberTypeDef]":
    """Return the members that the group lists, also those on their way out."""
    return {member["InstanceId"]: member for member in group.get("Instances", [])}


def is_counted(member: "MemberTypeDef") -> bool:
    """Return whether the target of the group counts a member: it is neither ending nor in standby."""
    lifecycle = _BY_LIFECYCLE.get(member["LifecycleState"])
    return lifecycle not in (InstancePhase.LEAVING, InstancePhase.STOPPED)


def is_aside(member: "MemberTypeDef") -> bool:
    """Return whether a member is in standby."""
    return _BY_LIFECYCLE.get(member["LifecycleState"]) is InstancePhase.STOPPED


def is_warm(lifecycle: str) -> bool:
    """Return whether a machine belongs to the group's warm pool, which is none of ours."""
    return lifecycle.startswith("Warmed:")


def tag(machine: "InstanceTypeDef", key: str) -> str:
    """Return the value of a tag; empty when it is not there."""
    return next((t.get("Value", "") for t in machine.get("Tags", []) if t.get("Key") == key), "")


def has_ended(machine: "InstanceTypeDef") -> bool:
    """Return whether EC2 has ended it, or is about to."""
    return _state(machine) in _ENDED


def member_of(
    member: "MemberTypeDef | AutoScalingInstanceDetailsTypeDef", machine: "InstanceTypeDef | None"
) -> Instance:
    """Return a member of the group. `machine` is None while EC2 does not list it: that comes later."""
    lifecycle = member["LifecycleState"]
    if machine is None:
        phase = _BY_LIFECYCLE.get(lifecycle, InstancePhase.STARTING)
        if lifecycle == "Terminated":
            phase = InstancePhase.GONE
        return Instance(
            node=member["InstanceId"],
            phase=phase,
            reason=_lifecycle_reason(lifecycle) if phase is not InstancePhase.STARTING else "",
            zone=member["AvailabilityZone"],
            kind=member.get("InstanceType", ""),
        )
    if has_ended(machine) or _phase(machine) is InstancePhase.STOPPED:
        return alone(machine)
    phase = _BY_LIFECYCLE.get(lifecycle, _phase(machine))
    reason = _lifecycle_reason(lifecycle) if phase in (InstancePhase.LEAVING, InstancePhase.STOPPED) else ""
    return _instance(machine, phase, reason)


def alone(machine: "InstanceTypeDef", *, is_stray: bool = False) -> Instance:
    """Return a machine as EC2 alone sees it."""
    phase = _phase(machine)
    quiet = phase in (InstancePhase.STARTING, InstancePhase.RUNNING)
    return _instance(machine, phase, "" if quiet else _state_reason(machine), is_stray=is_stray)


def _instance(
    machine: "InstanceTypeDef", phase: InstancePhase, reason: str, *, is_stray: bool = False
) -> Instance:
    launched = machine.get("LaunchTime")
    return Instance(
        node=machine["InstanceId"],
        phase=phase,
        reason=reason,
        since_s=None if launched is None else launched.timestamp(),
        zone=machine.get("Placement", {}).get("AvailabilityZone", ""),
        kind=machine.get("InstanceType", ""),
        market=Market.SPOT if machine.get("InstanceLifecycle") == "spot" else Market.ON_DEMAND,
        is_stray=is_stray,
    )


def _phase(machine: "InstanceTypeDef") -> InstancePhase:
    return _BY_STATE.get(_state(machine), InstancePhase.STARTING)


def _state(machine: "InstanceTypeDef") -> str:
    return machine.get("State", {}).get("Name", "")


def _state_reason(machine: "InstanceTypeDef") -> str:
    """Return EC2's code and words: `Server.SpotInstanceTermination` is what a preemption looks like."""
    told = machine.get("StateReason", {})
    code, message = told.get("Code", ""), told.get("Message", "")
    if code and not message.startswith(code):
        message = f"{code}: {message}" if message else code
    return message or machine.get("StateTransitionReason", "") or f"EC2 says {_state(machine)}"


def _lifecycle_reason(lifecycle: str) -> str:
    return f"the group says {lifecycle}"
