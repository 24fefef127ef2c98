"""The provider of one scale set. It never lowers a capacity below the machines there are.

Azure ends machines of its own choice when the capacity is lowered, so machines are ended by name only, and
`give_up` lowers to exactly those that exist. Azure makes no machine in the place of one that is gone: with
nothing under way, capacity that no machine stands behind is idle and reported as not asked for. It counts as
idle only after a while, because a list may lag behind, and to lower the capacity then would end a machine.
"""

import threading
from collections.abc import Mapping, Sequence

from azure.core.exceptions import AzureError, HttpResponseError

from varuna_manager.cloud.azure.compute import Compute, Write
from varuna_manager.cloud.azure.errors import provider_error, told, trouble_of
from varuna_manager.cloud.azure.machines import Group, Machine, group_of, machine_of
from varuna_manager.cloud.azure.pending import Pending, forget
from varuna_manager.cloud.opening import Notes
from varuna_manager.cloud.provider import InstancePhase, PoolReading, ProviderError, Trouble
from varuna_manager.pool_settings import AzurePool
from varuna_runtime.spec.errors import InvalidInput

_ALIVE = (InstancePhase.STARTING, InstancePhase.RUNNING)
_SETTLE_S = 30.0


class AzureProvider:
    """A virtual machine scale set, Uniform or Flexible. Safe from several threads: one call at a time.

    Machines that Azure warns about learn it from their own metadata service, and their agent tells Azure
    when they may go; so readings never say `leaves_at_s` and `let_go` has nothing to do.
    """

    def __init__(
        self, settings: AzurePool, notes: Notes, compute: Compute, *, settle_s: float = _SETTLE_S
    ) -> None:
        self._name = settings.scale_set
        self._price = settings.price
        self._notes = notes
        self._compute = compute
        self._settle_s = settle_s
        self._lock = threading.Lock()
        self._capacity: int | None = None  # as last read or written
        self._lacking_since_s: float | None = None  # nothing under way, and fewer machines than capacity
        self._has_idle_capacity = False
        self._known: set[str] = set()  # every node seen so far
        self._remark = ""  # what a person should know, for the next readings

    def close(self) -> None:
        """Close the connections."""
        self._compute.close()

    def read(self, now_s: float) -> PoolReading:
        """Ask how the write under way does, then for the set, then for its machines."""
        with self._lock:
            pending = self._follow()
            group = self._group()
            machines = self._machines(group)
            self._note_capacity(group, is_ours=pending is not None)
            if _is_short(pending) and _num_alive(machines) >= group.capacity:
                forget(self._notes)
                pending = None
            is_writing = _is_writing(pending, group, machines)
            self._note_idle_capacity(now_s, is_lacking=not is_writing and len(machines) < group.capacity)
            return self._reading(pending, group, machines, is_writing=is_writing)

    def grow(self, desired: int, seen: PoolReading) -> None:
        """Raise the capacity.

        If the set has that capacity already, and it is idle, it is taken back first and the next reading
        shows nothing raised yet: Azure need not act on a capacity that it has.
        """
        if desired <= seen.desired:
            raise InvalidInput(f"cannot grow {self._name} to {desired}: {seen.desired} are asked for already")
        with self._lock:
            group = self._quiet_group(f"grow {self._name} to {desired}")
            if self._capacity is not None and group.capacity != self._capacity:
                moved = f"its capacity went from {self._capacity} to {group.capacity} meanwhile"
                raise ProviderError(f"cannot grow {self._name}: {moved}", trouble=Trouble.RETRY)
            if desired > group.capacity:
                self._set_capacity(group, desired)
            elif not self._lower_to_existing(group):
                has = f"its capacity is {group.capacity} already"
                raise ProviderError(f"cannot grow {self._name} to {desired}: {has}", trouble=Trouble.RETRY)

    def release(self, nodes: Sequence[str], seen: PoolReading) -> None:
        """Delete exactly these machines; Azure lowers the capacity itself, which the next reading shows."""
        if not nodes:
            return
        with self._lock:
            group = self._quiet_group(f"release {', '.join(nodes)}")
            here = self._machines(group)
            known = self._known | {i.node for i in seen.instances}
            if strangers := sorted(set(nodes) - known - here.keys()):
                names = ", ".join(sorted(here)) or "none"
                raise InvalidInput(f"{self._name} never had {', '.join(strangers)}; it has {names}")
            leaving = InstancePhase.LEAVING
            doomed = [
                here[n] for n in sorted(set(nodes) & here.keys()) if here[n].instance.phase is not leaving
            ]
            if group.is_flexible:
                self._delete_machines(doomed)
            elif doomed:
                self._delete_instances(doomed)

    def give_up(self, seen: PoolReading) -> None:
        """Lower the capacity to the machines that exist, unless that could end one of them.

        It could while Azure makes machines: during a write, with spot restore or with overprovisioning. Then
        nothing is done and the next reading's warnings say so. Nor is anything done about capacity that has
        not been idle for long.
        """
        with self._lock:
            pending = self._follow()
            group = self._group()
            doubt = _doubt(pending, group)
            if doubt:
                self._remark = f"the capacity of {group.capacity} was not lowered: {doubt}"
                return
            self._lower_to_existing(group)

    def let_go(self, node: str, seen: PoolReading) -> None:
        """Do nothing: no machine of a scale set waits for the manager's word."""

    def _reading(
        self, pending: Pending | None, group: Group, machines: Mapping[str, Machine], *, is_writing: bool
    ) -> PoolReading:
        instances = tuple(machines[n].instance for n in sorted(machines))
        is_idle = self._has_idle_capacity and not group.fills_up and not _is_short(pending)
        desired = min(group.capacity, len(instances)) if is_idle else group.capacity
        shortage, trouble = ("", None) if _num_alive(machines) >= desired else _shortage(pending, machines)
        return PoolReading(
            instances=instances,
            desired=desired,
            least=0,
            most=group.most,
            price=self._price,
            shortage=shortage,
            shortage_trouble=trouble,
            warnings=(*group.warnings, *self._remarks(pending)),
            is_writing=is_writing,
        )

    def _remarks(self, pending: Pending | None) -> tuple[str, ...]:
        failed = pending.failure if pending and not _is_short(pending) else ""
        return tuple(text for text in (failed, self._remark) if text)

    def _follow(self) -> Pending | None:
        """Return the write under way, or the one that failed and was not followed by another."""
        pending = Pending.of(self._notes)
        if pending is None or not pending.handle:
            return pending
        try:
            if not self._compute.is_over(pending.write, pending.handle):
                return pending
        except HttpResponseError as err:
            if err.status_code != 200:  # no answer about the write, and so no reading
                raise provider_error(f"cannot ask how far this is: {pending.deed}", err) from err
            failed = pending.failed(provider_error(f"cannot {pending.deed}", err))
            failed.keep(self._notes)
            return failed
        except AzureError as err:
            raise provider_error(f"cannot ask how far this is: {pending.deed}", err) from err
        forget(self._notes)
        return None

    def _group(self) -> Group:
        with told(f"cannot read the scale set {self._name}"):
            return group_of(self._compute.scale_set())

    def _machines(self, group: Group) -> dict[str, Machine]:
        with told(f"cannot list the machines of {self._name}"):
            listed = self._compute.machines(is_flexible=group.is_flexible)
            machines = [machine_of(vm, group) for vm in listed]
        self._known.update(m.instance.node for m in machines)
        return {m.instance.node: m for m in machines}

    def _quiet_group(self, deed: str) -> Group:
        """Return the set, freshly read, if no write is under way on it: Azure refuses a second one."""
        pending = self._follow()
        if pending and pending.handle:
            raise ProviderError(f"cannot {deed}: Azure still works to {pending.deed}", trouble=Trouble.RETRY)
        group = self._group()
        if group.is_busy:
            raise ProviderError(f"cannot {deed}: Azure is changing {self._name}", trouble=Trouble.RETRY)
        return group

    def _set_capacity(self, group: Group, capacity: int) -> None:
        deed = f"set the capacity of {self._name} from {group.capacity} to {capacity}"
        self._capacity = None  # until the answer is here, it may be either
        self._lacking_since_s, self._has_idle_capacity = None, False
        with told(f"cannot {deed}"):
            handle = self._compute.set_capacity(capacity, group.etag)
        Pending(write=Write.CAPACITY, deed=deed, handle=handle).keep(self._notes)
        self._capacity, self._remark = capacity, ""

    def _lower_to_existing(self, group: Group) -> bool:
        """Take idle capacity back and return True; False if there is none, or if that could end a machine.

        A machine that is leaving still counts as there.
        """
        if not self._has_idle_capacity or _doubt(None, group):
            return False
        num_existing = len(self._machines(group))
        if num_existing >= group.capacity:
            return False
        self._set_capacity(group, num_existing)
        return True

    def _delete_instances(self, doomed: Sequence[Machine]) -> None:
        deed = f"delete {', '.join(m.instance.node for m in doomed)}"
        try:
            handle = self._compute.delete_instances([m.id for m in doomed])
        except AzureError as err:
            failure = provider_error(f"cannot {deed}", err)
            if failure.trouble is Trouble.CONFIG:  # one of them is gone since the list
                failure.trouble = Trouble.RETRY
            raise failure from err
        Pending(write=Write.DELETE, deed=deed, handle=handle).keep(self._notes)

    def _delete_machines(self, doomed: Sequence[Machine]) -> None:
        """Delete machines of a Flexible set one by one; one that fails does not spare the others."""
        failures: list[ProviderError] = []
        for machine in doomed:
            try:
                self._compute.delete_machine(machine.instance.node)
            except AzureError as err:
                failures.append(provider_error(f"cannot delete {machine.instance.node}", err))
                if failures[-1].trouble is Trouble.THROTTLED:
                    break  # each further call would only prolong it
        if failures:
            first = failures[0]
            text = "; ".join(map(str, failures))
            raise ProviderError(text, trouble=first.trouble, retry_after_s=first.retry_after_s)

    def _note_idle_capacity(self, now_s: float, *, is_lacking: bool) -> None:
        before_s = self._lacking_since_s
        since_s = (now_s if before_s is None else before_s) if is_lacking else None
        self._lacking_since_s = since_s
        self._has_idle_capacity = since_s is not None and now_s - since_s >= self._settle_s

    def _note_capacity(self, group: Group, *, is_ours: bool) -> None:
        if self._capacity is not None and group.capacity > self._capacity and not is_ours:
            self._remark = (
                f"the capacity rose from {self._capacity} to {group.capacity} without our doing: switch off "
                "what else scales this set, such as autoscale rules"
            )
        self._capacity = group.capacity


def _is_writing(pending: Pending | None, group: Group, machines: Mapping[str, Machine]) -> bool:
    """Return whether Azure works on the set; deletes in a Flexible one show by their machines alone."""
    leaving = any(m.instance.phase is InstancePhase.LEAVING for m in machines.values())
    return group.is_busy or (group.is_flexible and leaving) or bool(pending and pending.handle)


def _num_alive(machines: Mapping[str, Machine]) -> int:
    return sum(m.instance.phase in _ALIVE for m in machines.values())


def _is_short(pending: Pending | None) -> bool:
    return bool(pending and pending.failure and pending.write is Write.CAPACITY)


def _doubt(pending: Pending | None, group: Group) -> str:
    """Return why machines could appear by themselves, so that a lower capacity could end one."""
    if pending and pending.handle:
        return f"Azure still works to {pending.deed}"
    if group.is_busy:
        return "Azure is changing the scale set"
    if group.fills_up:
        return "spot restore is enabled, and a machine that it brings back would put another at risk"
    if group.may_exceed:
        return "overprovision is on, and Azure would end machines of its own choice"
    return ""


def _shortage(pending: Pending | None, machines: Mapping[str, Machine]) -> tuple[str, Trouble | None]:
    if pending and _is_short(pending):
        return pending.failure, pending.trouble
    for machine in machines.values():
        code, _, text = machine.instance.reason.partition(": ")
        trouble = trouble_of(None, (code,), text)
        if trouble is not Trouble.UNKNOWN:
            return machine.instance.reason, trouble
    return "", None
