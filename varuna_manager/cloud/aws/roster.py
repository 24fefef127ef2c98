"""The machines of a group, and those of ours that are in none, out of several AWS answers."""

from dataclasses import replace
from typing import TYPE_CHECKING

from varuna_manager.cloud.aws import machines
from varuna_manager.cloud.aws.calls import AwsCalls
from varuna_manager.cloud.aws.times import Times
from varuna_manager.cloud.provider import Instance, InstancePhase
from varuna_manager.pool_settings import AwsPool

if TYPE_CHECKING:
    from mypy_boto3_autoscaling.type_defs import AutoScalingGroupTypeDef
    from mypy_boto3_ec2.type_defs import InstanceTypeDef

    from varuna_manager.cloud.opening import Notes

_REMEMBERED_S = 7200.0  # EC2 lists an ended machine for about an hour
_USUAL_HOOK_S = 3600


class Roster:
    """Remembers what AWS does not say again: who is gone for ever, and since when a hook holds a machine."""

    def __init__(self, calls: AwsCalls, settings: AwsPool, notes: "Notes") -> None:
        self._calls = calls
        self._settings = settings
        self._waits_since_s = Times(notes, "held by hooks")
        self._gone: dict[str, tuple[Instance, float]] = {}  # and when each was last listed

    def instances(self, group: "AutoScalingGroupTypeDef", now_s: float) -> tuple[Instance, ...]:
        """Return every machine of the group and every stray, sorted by node."""
        listed = self._listed()
        members = [
            machines.member_of(member, listed.get(node))
            for node, member in machines.members_by_id(group).items()
        ]
        found = self._gone_for_ever(members + self._others(group, listed), now_s)
        return tuple(sorted(self._held_by_hooks(group, found, now_s), key=lambda i: i.node))

    def _listed(self) -> "dict[str, InstanceTypeDef]":
        """Return the machines that are or were in the group, and those that carry our tag and no group's."""
        ours = self._calls.machines(machines.GROUP_TAG, self._settings.group)
        tagged = self._calls.machines(machines.CLUSTER_TAG, self._settings.cluster)
        free = [m for m in tagged if not machines.tag(m, machines.GROUP_TAG)]
        return {m["InstanceId"]: m for m in (*free, *ours)}

    def _others(
        self, group: "AutoScalingGroupTypeDef", listed: "dict[str, InstanceTypeDef]"
    ) -> list[Instance]:
        """Return what is not in the group: the ended, the ones that joined since, and strays.

        A stray is ended in the end, so it is asked first whether it really is in no group.
        """
        members = machines.members_by_id(group)
        others = {n: m for n, m in sorted(listed.items()) if n not in members}
        memberships = self._calls.memberships([n for n, m in others.items() if not machines.has_ended(m)])
        found = []
        for node, machine in others.items():
            membership = memberships.get(node)
            if machines.has_ended(machine):
                found.append(machines.alone(machine))
            elif membership is None:
                found.append(machines.alone(machine, is_stray=True))
            elif self._is_ours(membership["AutoScalingGroupName"], membership["LifecycleState"]):
                found.append(machines.member_of(membership, machine))
        return found

    def _is_ours(self, group: str, lifecycle: str) -> bool:
        return group == self._settings.group and not machines.is_warm(lifecycle)

    def _gone_for_ever(self, found: list[Instance], now_s: float) -> list[Instance]:
        """Return `found` with all that once was gone as gone: EC2 may answer from a past state."""
        for instance in found:
            if instance.node in self._gone or instance.phase is InstancePhase.GONE:
                first = self._gone.get(instance.node, (instance, now_s))[0]
                self._gone[instance.node] = (first, now_s)
        self._gone = {n: (i, at_s) for n, (i, at_s) in self._gone.items() if now_s < at_s + _REMEMBERED_S}
        return [self._gone[i.node][0] if i.node in self._gone else i for i in found]

    def _held_by_hooks(
        self, group: "AutoScalingGroupTypeDef", found: list[Instance], now_s: float
    ) -> list[Instance]:
        """Return them with the end of those that a hook holds: the first to time out may end it."""
        members = machines.members_by_id(group)
        held = [n for n, m in members.items() if m["LifecycleState"] == "Terminating:Wait"]
        known = self._waits_since_s.get()
        since_s = {n: known.get(n, now_s) for n in held}
        self._waits_since_s.put(since_s)
        hooks = self._calls.terminate_hooks(self._settings.group) if held else []
        if not hooks:
            return found
        timeout_s = min(hook.get("HeartbeatTimeout", _USUAL_HOOK_S) for hook in hooks)
        return [
            replace(i, leaves_at_s=since_s[i.node] + timeout_s)
            if i.node in since_s and i.phase is InstancePhase.LEAVING
            else i
            for i in found
        ]
