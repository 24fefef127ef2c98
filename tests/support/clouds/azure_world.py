"""What happens in the fake Azure: scale sets, machines, operations, evictions; no sockets, time is passed in.

Everything that the documentation leaves open is a switch of `Rules`, so that a test can hold both ways.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime


@dataclass(slots=True, kw_only=True)
class Rules:
    """How this Azure behaves. Times in seconds."""

    boot_s: float = 0.0  # from Creating to a power state of running
    write_s: float = 0.0  # how long a long-running operation takes
    evict_s: float = 0.0  # from the start of an eviction until the machine is away
    stock: int | None = None  # machines that can still be allocated; None: any number
    quota: int | None = None  # highest capacity the subscription allows
    page_size: int = 2
    evict_lowers_capacity: bool = True
    seeks_capacity: bool = True  # a write of the capacity fills up what vanished before
    leaves_failed: bool = True  # an allocation that fails leaves a Failed machine behind
    one_delete_at_a_time: bool = True


@dataclass(slots=True, kw_only=True)
class Machine:
    """A VM. `state` is creating, running, stopped, deallocated, failed, failed-running or deleting."""

    id: str
    name: str
    created_s: float
    runs_at_s: float
    zone: str
    state: str = "creating"
    reason: str = ""
    event: str = ""  # id of its scheduled event


@dataclass(slots=True, kw_only=True)
class Event:
    """A scheduled event of one machine; `starts_s` is its NotBefore."""

    id: str
    machine: str
    kind: str
    starts_s: float
    is_started: bool = False
    acknowledged_by: str = ""


@dataclass(slots=True, kw_only=True)
class Operation:
    """A write under way; `ends` is called once, when it is over."""

    id: str
    kind: str
    ends_s: float
    ends: Callable[[], None]
    error: dict[str, object] | None = None
    is_over: bool = False


@dataclass(slots=True, kw_only=True)
class ScaleSet:
    """A scale set and its machines, by id."""

    name: str
    resource_group: str = "rg"
    is_flexible: bool = False
    size: str = "Standard_NC4as_T4_v3"
    priority: str = "Spot"
    eviction_policy: str = "Delete"
    restores: bool = False
    overprovision: bool = False
    repairs: bool = False
    more: dict[str, object] = field(default_factory=dict)  # properties that change nothing here
    single_placement_group: bool = False
    zones: tuple[str, ...] = ("1", "2")
    tags: dict[str, str] = field(default_factory=lambda: {"varuna:cluster": "varuna"})
    capacity: int = 0
    version: int = 1  # the etag
    state: str = "Succeeded"
    machines: dict[str, Machine] = field(default_factory=dict)
    events: dict[str, Event] = field(default_factory=dict)
    incarnation: int = 1
    num_made: int = 0
    operations: list[Operation] = field(default_factory=list)

    def living(self) -> list[Machine]:
        return [m for m in self.machines.values() if m.state != "deleting"]


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, code: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s


class World:
    """All of one subscription. Call `advance` before anything else; not safe from several threads."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.sets: dict[str, ScaleSet] = {}
        self.now_s = 0.0
        self._num_ids = 0

    def add(self, scale_set: ScaleSet) -> ScaleSet:
        """Create a scale set and its machines, running at once."""
        self.sets[scale_set.name] = scale_set
        for _ in range(scale_set.capacity):
            self._make(scale_set, "running")
        return scale_set

    def advance(self, now_s: float) -> None:
        """Let everything happen that was due by `now_s` (Unix time)."""
        self.now_s = now_s
        for scale_set in self.sets.values():
            for machine in scale_set.machines.values():
                if machine.state == "creating" and machine.runs_at_s <= now_s:
                    machine.state = "running"
            for event in list(scale_set.events.values()):
                if not event.is_started and event.starts_s <= now_s:
                    self._start(scale_set, event)
            self._finish(scale_set)

    def set_capacity(self, scale_set: ScaleSet, capacity: int, if_match: str | None) -> Operation:
        """The PATCH of sku.capacity."""
        if if_match not in (None, "*", etag(scale_set)):
            raise Refused(412, "PreconditionFailed", f"the etag is {etag(scale_set)}, not {if_match}")
        self._refuse_while_writing(scale_set)
        quota = self.rules.quota
        if quota is not None and capacity > quota:
            raise Refused(
                409,
                "OperationNotAllowed",
                "The operation results in exceeding approved LowPriorityCores quota. "
                f"Current Limit: {quota}, Additional Required: {capacity - quota}",
            )
        before, scale_set.capacity = scale_set.capacity, capacity
        scale_set.version += 1
        scale_set.state = "Updating"
        living = scale_set.living()
        wanted = capacity - (len(living) if self.rules.seeks_capacity else max(before, len(living)))
        num_missing = sum(not self._allocate(scale_set) for _ in range(wanted))
        doomed = self._victims(scale_set, len(living) - capacity)
        for machine in doomed:
            machine.state = "deleting"

        def ends() -> None:
            scale_set.state = "Failed" if num_missing else "Succeeded"
            self._remove(scale_set, doomed)

        operation = self._begin(scale_set, "write", self.rules.write_s, ends)
        if num_missing:
            operation.error = {"code": "AllocationFailed", "message": NO_CAPACITY}
        return operation

    def delete(self, scale_set: ScaleSet, ids: list[str]) -> Operation:
        """Delete instances of a Uniform set, or one VM of a Flexible one: both lower the capacity."""
        unknown = [i for i in ids if i not in scale_set.machines]
        if unknown:
            raise Refused(404, "InstanceIdsNotFound", f"no instances {', '.join(unknown)}")
        if not scale_set.is_flexible and self.rules.one_delete_at_a_time:
            self._refuse_while_writing(scale_set)
        doomed = [scale_set.machines[i] for i in ids if scale_set.machines[i].state != "deleting"]
        for machine in doomed:
            machine.state = "deleting"

        def ends() -> None:
            here = [m for m in doomed if m.id in scale_set.machines]
            scale_set.capacity = max(0, scale_set.capacity - len(here))
            scale_set.version += 1
            self._remove(scale_set, here)

        return self._begin(scale_set, "delete", self.rules.write_s, ends)

    def schedule(self, scale_set: ScaleSet, machine: Machine, kind: str, in_s: float) -> Event:
        """Announce an event of a machine, as an eviction does half a minute before."""
        event = Event(
            id=f"event-{self._next_id()}", machine=machine.name, kind=kind, starts_s=self.now_s + in_s
        )
        scale_set.events[event.id] = event
        scale_set.incarnation += 1
        machine.event = event.id
        return event

    def withdraw(self, scale_set: ScaleSet, event_id: str) -> None:
        """Take an event back that has not started."""
        del scale_set.events[event_id]
        scale_set.incarnation += 1

    def acknowledge(self, scale_set: ScaleSet, event_ids: list[str], by: str) -> None:
        """The StartRequests that an agent posts: the event starts at once."""
        for event_id in event_ids:
            event = scale_set.events.get(event_id)
            if event is None:
                raise Refused(400, "BadRequest", f"no event {event_id}")
            if not event.is_started:
                event.acknowledged_by = by
                self._start(scale_set, event)
        self._finish(scale_set)

    def evict(self, scale_set: ScaleSet, machine: Machine) -> None:
        """Take a machine away now, without a word."""
        if scale_set.eviction_policy == "Deallocate":
            machine.state = "deallocated"
            return
        machine.state = "deleting"

        def ends() -> None:
            if self.rules.evict_lowers_capacity:
                scale_set.capacity -= 1
                scale_set.version += 1
            self._remove(scale_set, [machine])

        self._begin(scale_set, "evict", self.rules.evict_s, ends)
        self._finish(scale_set)

    def find(self, name: str) -> tuple[ScaleSet, Machine]:
        """Return the machine of that name and its set."""
        for scale_set in self.sets.values():
            for machine in scale_set.machines.values():
                if machine.name == name:
                    return scale_set, machine
        raise Refused(404, "ResourceNotFound", f"no machine {name}")

    def operation(self, operation_id: str) -> Operation:
        """Return an operation, over or not."""
        for operation in self._operations():
            if operation.id == operation_id:
                return operation
        raise Refused(404, "NotFound", f"no operation {operation_id}")

    def _operations(self) -> Iterator[Operation]:
        for scale_set in self.sets.values():
            yield from scale_set.operations

    def _allocate(self, scale_set: ScaleSet) -> bool:
        if self.rules.stock == 0:
            if self.rules.leaves_failed:
                self._make(scale_set, "failed").reason = NO_CAPACITY
            return False
        if self.rules.stock is not None:
            self.rules.stock -= 1
        self._make(scale_set, "creating")
        return True

    def _make(self, scale_set: ScaleSet, state: str) -> Machine:
        number = scale_set.num_made
        scale_set.num_made += 1
        name = f"{scale_set.name}_{number:08x}" if scale_set.is_flexible else f"{scale_set.name}_{number}"
        machine = Machine(
            id=name if scale_set.is_flexible else str(number),
            name=name,
            created_s=self.now_s,
            runs_at_s=self.now_s + self.rules.boot_s,
            zone=scale_set.zones[number % len(scale_set.zones)] if scale_set.zones else "",
            state=state,
        )
        scale_set.machines[machine.id] = machine
        return machine

    def _victims(self, scale_set: ScaleSet, count: int) -> list[Machine]:
        """The default scale-in policy: the newest go first."""
        return scale_set.living()[::-1][:count] if count > 0 else []

    def _start(self, scale_set: ScaleSet, event: Event) -> None:
        event.is_started = True
        scale_set.incarnation += 1
        machine = next((m for m in scale_set.living() if m.name == event.machine), None)
        if machine is not None and event.kind in ("Preempt", "Terminate"):
            self.evict(scale_set, machine)

    def _begin(self, scale_set: ScaleSet, kind: str, lasts_s: float, ends: Callable[[], None]) -> Operation:
        operation = Operation(
            id=f"operation-{self._next_id()}", kind=kind, ends_s=self.now_s + lasts_s, ends=ends
        )
        scale_set.operations.append(operation)
        return operation

    def _finish(self, scale_set: ScaleSet) -> None:
        for operation in scale_set.operations:
            if not operation.is_over and operation.ends_s <= self.now_s:
                operation.is_over = True
                operation.ends()

    def _remove(self, scale_set: ScaleSet, machines: list[Machine]) -> None:
        for machine in machines:
            scale_set.machines.pop(machine.id, None)
            scale_set.events.pop(machine.event, None)

    def _refuse_while_writing(self, scale_set: ScaleSet) -> None:
        if any(not o.is_over and o.kind != "evict" for o in scale_set.operations):
            raise Refused(409, "Conflict", "another operation on this scale set is in progress")

    def _next_id(self) -> int:
        self._num_ids += 1
        return self._num_ids


NO_CAPACITY = (
    "Allocation failed. We do not have sufficient capacity for the requested VM size in this region."
)


def etag(scale_set: ScaleSet) -> str:
    """Return the text that a write may be conditional on."""
    return f'"{scale_set.version}"'


def scheduled_events(scale_set: ScaleSet) -> dict[str, object]:
    """Return the document that every machine of the set sees."""
    return {
        "DocumentIncarnation": scale_set.incarnation,
        "Events": [
            {
                "EventId": e.id,
                "EventType": e.kind,
                "ResourceType": "VirtualMachine",
                "Resources": [e.machine],
                "EventStatus": "Started" if e.is_started else "Scheduled",
                "NotBefore": "" if e.is_started else http_date(e.starts_s),
                "Description": "",
                "EventSource": "Platform",
                "DurationInSeconds": -1,
            }
            for e in scale_set.events.values()
        ],
    }


def http_date(at_s: float) -> str:
    """Return Unix time as Azure writes a NotBefore."""
    return format_datetime(datetime.fromtimestamp(at_s, UTC), usegmt=True)
