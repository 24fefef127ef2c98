"""An Auto Scaling group as a pool. It never lowers a target by number where that could end a node."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from varuna_manager.cloud.aws import advice, machines
from varuna_manager.cloud.aws.calls import AwsCalls
from varuna_manager.cloud.aws.notices import Notices
from varuna_manager.cloud.aws.price import SpotPrice
from varuna_manager.cloud.aws.roster import Roster
from varuna_manager.cloud.aws.settling import Settling
from varuna_manager.cloud.aws.shortage import shortage
from varuna_manager.cloud.aws.template import Template
from varuna_manager.cloud.complaints import Complaints
from varuna_manager.cloud.provider import Instance, InstancePhase, PoolReading, ProviderError, Trouble
from varuna_manager.pool_settings import AwsPool
from varuna_runtime.spec.errors import InvalidInput

if TYPE_CHECKING:
    from mypy_boto3_autoscaling.type_defs import AutoScalingGroupTypeDef
    from mypy_boto3_ec2.type_defs import ResponseLaunchTemplateDataTypeDef

    from varuna_manager.cloud.opening import Notes

_LIVING = (InstancePhase.STARTING, InstancePhase.RUNNING)
_ENDS_AT_ONCE = 100  # a member takes about a third of a second, and a whole call may take a minute


class AwsProvider:
    """The pool of one group; one call at a time, each of which blocks.

    `read` also protects members from scale-in that are not: whoever lowers the target by hand ends no node.
    """

    def __init__(self, settings: AwsPool, notes: "Notes", calls: AwsCalls) -> None:
        self._settings = settings
        self._calls = calls
        self._roster = Roster(self._calls, settings, notes)
        self._notices = Notices(self._calls, settings.notices_queue, notes)
        self._spot_price = SpotPrice(self._calls)
        self._template = Template(self._calls)
        self._settling = Settling()
        self._read_at_s = 0.0
        self._complaints = Complaints()
        self._why_not_lowered = ""

    def read(self, now_s: float) -> PoolReading:
        """Return the group, its machines and our strays; see `Provider`."""
        group = self._calls.group(self._settings.group)
        instances = self._roster.instances(group, now_s)
        there = {i.node for i in instances if i.phase is not InstancePhase.GONE}
        problems = self._notices.refresh(there, now_s)
        instances = tuple(_warned(i, self._notices.ends_at_s(i.node)) for i in instances)
        num_alive = sum(i.phase in _LIVING and not i.is_stray for i in instances)
        self._read_at_s = now_s
        self._complaints.note(group["DesiredCapacity"], now_s)
        lack, trouble = self._lack(group, num_alive, now_s)
        template, unknown_template = self._template.of(group, now_s)
        price, unknown_price = self._price(group, template, num_alive, now_s)
        problems += (unknown_template, unknown_price, self._protect(group), self._not_lowered(group))
        return PoolReading(
            instances=instances,
            desired=group["DesiredCapacity"],
            least=group["MinSize"],
            most=group["MaxSize"],
            price=price,
            shortage=lack,
            shortage_trouble=trouble,
            warnings=(*advice.advice(group, template, self._settings), *(p for p in problems if p)),
            is_writing=not self._settling.is_over(group["DesiredCapacity"], now_s),
        )

    def grow(self, desired: int, seen: PoolReading) -> None:
        """Raise the target, if it is still the one that was seen; nothing to do if it is there already."""
        if desired <= seen.desired:
            raise InvalidInput(f"cannot grow to {desired}: the target is {seen.desired} already")
        group = self._fresh(seen, also=desired)
        if group["DesiredCapacity"] == desired:
            return
        if desired > group["MaxSize"]:
            raise ProviderError(
                f"cannot grow group {self._settings.group} to {desired}: its MaxSize is {group['MaxSize']}; "
                "raise it, or lower max of the pool",
                trouble=Trouble.CONFIG,
            )
        self._set_target(desired)

    def release(self, nodes: Sequence[str], seen: PoolReading) -> None:
        """End members, lowering the target with each as far as MinSize allows, and strays.

        What ends at MinSize is replaced: it is of no use, and the group keeps so many whatever we do. RETRY,
        with a part of the work done, for more members than there is time for in one call.
        """
        group = self._calls.group(self._settings.group)
        members = machines.members_by_id(group)
        known = {i.node: i for i in seen.instances}
        wanted = tuple(dict.fromkeys(nodes))
        if unknown := [n for n in wanted if n not in known and n not in members]:
            raise InvalidInput(f"no node {', '.join(unknown)} in group {self._settings.group}; read it again")
        loose = [known[n] for n in wanted if n not in members]
        failed = self._end_strays([i.node for i in loose if i.is_stray and i.phase is not InstancePhase.GONE])
        aside = [n for n in wanted if n in members and machines.is_aside(members[n])]
        for node in aside:
            self._end_member(node, lowers=False)
        counted = [n for n in wanted if n in members and machines.is_counted(members[n])]
        target = group["DesiredCapacity"]
        for node in counted[:_ENDS_AT_ONCE]:
            lowers = target > group["MinSize"]
            self._end_member(node, lowers=lowers)
            target -= lowers
            self._settling.wrote(target, self._read_at_s)
        if later := len(counted[_ENDS_AT_ONCE:]):
            raise ProviderError(
                f"{later} more nodes to end than one call has time for", trouble=Trouble.RETRY
            )
        if failed is not None:
            raise failed

    def give_up(self, seen: PoolReading) -> None:
        """Lower the target to what exists, if everything alive is protected; else the next readings warn."""
        group = self._fresh(seen)
        counted = [m for m in machines.members_by_id(group).values() if machines.is_counted(m)]
        target = max(len(counted), group["MinSize"])
        if target >= group["DesiredCapacity"]:
            return
        if not group.get("NewInstancesProtectedFromScaleIn"):
            self._why_not_lowered = "new nodes are not protected from scale-in"
        elif exposed := sorted(m["InstanceId"] for m in counted if not m["ProtectedFromScaleIn"]):
            self._why_not_lowered = f"{', '.join(exposed)} are not protected from scale-in"
        else:
            self._why_not_lowered = ""
            self._set_target(target)

    def let_go(self, node: str, seen: PoolReading) -> None:
        """Complete the termination hooks that hold a node; one that is held no more is fine."""
        found = next((i for i in seen.instances if i.node == node), None)
        if found is None:
            raise InvalidInput(f"no node {node} in group {self._settings.group}; read it again")
        if found.phase is not InstancePhase.LEAVING:
            return
        for hook in self._calls.terminate_hooks(self._settings.group):
            self._calls.complete(self._settings.group, hook.get("LifecycleHookName", ""), node)

    def _lack(
        self, group: "AutoScalingGroupTypeDef", num_alive: int, now_s: float
    ) -> tuple[str, Trouble | None]:
        if num_alive >= group["DesiredCapacity"]:
            return "", None
        after_s = self._complaints.after_s(now_s)
        return shortage(self._calls.activities(self._settings.group), after_s, now_s)

    def _price(
        self,
        group: "AutoScalingGroupTypeDef",
        template: "ResponseLaunchTemplateDataTypeDef | None",
        num_alive: int,
        now_s: float,
    ) -> tuple[float | None, str]:
        if self._settings.price is not None:
            return self._settings.price, ""
        kinds = advice.spot_kinds(group, template, num_alive)
        return self._spot_price.of(kinds, set(group["AvailabilityZones"]), now_s)

    def _protect(self, group: "AutoScalingGroupTypeDef") -> str:
        """Protect whoever serves and is not; return why that was refused: it spoils no reading."""
        exposed = sorted(
            m["InstanceId"]
            for m in machines.members_by_id(group).values()
            if m["LifecycleState"] == "InService" and not m["ProtectedFromScaleIn"]
        )
        try:
            self._calls.protect(self._settings.group, exposed)
        except ProviderError as err:
            return f"{', '.join(exposed)} are not protected from scale-in: {err}"
        return ""

    def _not_lowered(self, group: "AutoScalingGroupTypeDef") -> str:
        counted = sum(machines.is_counted(m) for m in machines.members_by_id(group).values())
        if counted >= group["DesiredCapacity"]:
            self._why_not_lowered = ""
        if not self._why_not_lowered:
            return ""
        target = group["DesiredCapacity"]
        return f"the target {target} is not lowered to the {counted} nodes there are: {self._why_not_lowered}"

    def _fresh(self, seen: PoolReading, also: int | None = None) -> "AutoScalingGroupTypeDef":
        """Return the group if its target is still the one seen, or `also`; RETRY when it is another."""
        group = self._calls.group(self._settings.group)
        name, target = self._settings.group, group["DesiredCapacity"]
        if advice.is_weighted(group):
            raise ProviderError(
                f"group {name} counts weights or units instead of machines; remove them",
                trouble=Trouble.CONFIG,
            )
        if target not in (seen.desired, also):
            raise ProviderError(
                f"the target of group {name} is {target} and no longer {seen.desired}; read it again",
                trouble=Trouble.RETRY,
            )
        return group

    def _set_target(self, desired: int) -> None:
        try:
            self._calls.set_desired(self._settings.group, desired)
        except ProviderError as err:
            self._note_unanswered(err)
            raise
        self._settling.wrote(desired, self._read_at_s)

    def _end_member(self, node: str, *, lowers: bool) -> None:
        try:
            self._calls.end_member(node, lowers=lowers)
        except ProviderError as err:
            self._note_unanswered(err)
            raise

    def _end_strays(self, nodes: Sequence[str]) -> ProviderError | None:
        """End machines of no group; return the first refusal: one that is locked spares no other."""
        failed = None
        for node in nodes:
            try:
                self._calls.end_machine(node)
            except ProviderError as err:
                failed = failed or err
        return failed

    def _note_unanswered(self, err: ProviderError) -> None:
        if err.trouble is Trouble.RETRY:
            self._settling.unanswered(self._read_at_s)


def _warned(instance: Instance, ends_at_s: float | None) -> Instance:
    """Return it with the end that a warning announced, if that is the earlier one."""
    if ends_at_s is None or instance.phase is InstancePhase.GONE:
        return instance
    known = instance.leaves_at_s
    return replace(
        instance,
        leaves_at_s=ends_at_s if known is None else min(known, ends_at_s),
        reason=instance.reason or "AWS announced a Spot interruption",
    )
