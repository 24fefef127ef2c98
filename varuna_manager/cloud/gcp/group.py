"""What Compute Engine says of a managed instance group, as a reading of ours; pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from varuna_manager.cloud.gcp.errors import first_error
from varuna_manager.cloud.provider import Instance, InstancePhase, Market, Trouble

Json = Mapping[str, Any]

_STATUSES = {
    "PENDING": InstancePhase.STARTING,
    "PROVISIONING": InstancePhase.STARTING,
    "STAGING": InstancePhase.STARTING,
    "REPAIRING": InstancePhase.STARTING,
    "RUNNING": InstancePhase.RUNNING,
    "PENDING_STOP": InstancePhase.LEAVING,
    "STOPPING": InstancePhase.LEAVING,
    "SUSPENDING": InstancePhase.LEAVING,
    "DEPROVISIONING": InstancePhase.LEAVING,
    "SUSPENDED": InstancePhase.STOPPED,
    "STOPPED": InstancePhase.STOPPED,
    "TERMINATED": InstancePhase.STOPPED,
}
_MAKING = {"CREATING", "CREATING_WITHOUT_RETRIES", "RECREATING"}
_ENDING = {"DELETING", "ABANDONING"}
_RAISING = {"STARTING", "RESUMING"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A place of the group. Its machine may not exist: not yet, or not again after it was preempted."""

    name: str
    url: str
    status: str  # of the machine; empty: there is none
    action: str
    error: tuple[str, Trouble] | None

    @property
    def is_machine(self) -> bool:
        """A stopped machine that is about to be made anew is as good as none."""
        return bool(self.status) and not (
            self.action in _MAKING and _STATUSES.get(self.status) is InstancePhase.STOPPED
        )

    @property
    def is_awaited(self) -> bool:
        """The group still tries to make the machine."""
        return not self.is_machine and self.action in _MAKING

    @property
    def is_ending(self) -> bool:
        """The group will end it, and has lowered its target already."""
        return self.action in _ENDING

    @property
    def phase(self) -> InstancePhase:
        """Phase of the machine."""
        phase = _STATUSES.get(self.status, InstancePhase.STARTING)
        if self.is_ending or (phase is InstancePhase.RUNNING and self.action in ("RECREATING", "RESTARTING")):
            return InstancePhase.LEAVING
        if phase is InstancePhase.STOPPED and self.action in _RAISING:
            return InstancePhase.STARTING
        return phase


def members(pages: Sequence[Json]) -> tuple[Member, ...]:
    """Return the places listed on the pages of `listManagedInstances`."""
    return tuple(_member(found) for page in pages for found in page.get("managedInstances", ()))


def _member(found: Json) -> Member:
    url = str(found.get("instance", ""))
    return Member(
        name=str(found.get("name") or _tail(url)),
        url=url,
        status=str(found.get("instanceStatus", "")),
        action=str(found.get("currentAction", "NONE")),
        error=first_error(found.get("lastAttempt", {})),
    )


def zones(found: Json) -> tuple[str, ...]:
    """Return the zones over which a regional group spreads its machines."""
    spread = found.get("distributionPolicy", {}).get("zones", ())
    return tuple(sorted(_tail(str(place.get("zone", ""))) for place in spread))


def instances(places: Sequence[Member], labelled: Sequence[Json], group_path: str) -> tuple[Instance, ...]:
    """Return the machines of the group, and those it made once and let go, by node."""
    by_name = {str(machine["name"]): machine for machine in labelled}
    own = (_of_member(m, by_name.get(m.name, {})) for m in places if m.is_machine)
    inside = {member.name for member in places}
    outside = (m for m in labelled if m["name"] not in inside and _made_by(m).endswith(group_path))
    return tuple(sorted((*own, *map(_stray, outside)), key=lambda instance: instance.node))


def _of_member(member: Member, machine: Json) -> Instance:
    phase = member.phase
    is_well = phase in (InstancePhase.RUNNING, InstancePhase.STARTING)
    return Instance(
        node=member.name,
        phase=phase,
        reason="" if is_well else f"{member.status}, {member.action}",
        since_s=_unix_s(str(machine.get("creationTimestamp", ""))),
        zone=_zone(member.url),
        kind=_tail(str(machine.get("machineType", ""))),
        market=_market(machine),
    )


def _stray(machine: Json) -> Instance:
    status = str(machine.get("status", ""))
    return Instance(
        node=str(machine["name"]),
        phase=_STATUSES.get(status, InstancePhase.STARTING),
        reason=f"{status}, no member of its group any more",
        since_s=_unix_s(str(machine.get("creationTimestamp", ""))),
        zone=_tail(str(machine.get("zone", ""))),
        kind=_tail(str(machine.get("machineType", ""))),
        market=_market(machine),
        is_stray=True,
    )


def shortage(
    places: Sequence[Member], error_pages: Sequence[Json], after_s: float
) -> tuple[str, Trouble] | None:
    """Return why machines do not come: from the attempts under way, else the newest error since `after_s`."""
    for member in places:
        if member.is_awaited and member.error is not None:
            return member.error
    told = [(_unix_s(str(i.get("timestamp", ""))), i) for page in error_pages for i in page.get("items", ())]
    items = [(at_s, item) for at_s, item in told if at_s is not None and at_s >= after_s]
    items.sort(key=lambda dated: dated[0], reverse=True)
    found = (first_error({"error": {"errors": [item.get("error", {})]}}) for _, item in items)
    return next((error for error in found if error is not None), None)


def warnings(group: Json, labelled: Sequence[Json], places: Sequence[Member], label: str) -> Iterator[str]:
    """Yield the settings of a group that a person should change."""
    if group.get("status", {}).get("autoscaler"):
        yield "an autoscaler is attached: it undoes what the manager decides; delete it"
    policy = group.get("updatePolicy", {})
    if policy.get("instanceRedistributionType") == "PROACTIVE":
        yield "instanceRedistributionType is PROACTIVE: busy nodes are ended to balance zones; set it to NONE"
    if policy.get("type") == "PROACTIVE":
        yield "updatePolicy.type is PROACTIVE: a new template ends busy nodes; set it to OPPORTUNISTIC"
    if group.get("autoHealingPolicies"):
        yield "auto-healing is on: it ends nodes whose health check fails, without a notice"
    names = {str(machine["name"]) for machine in labelled}
    if any(member.is_machine and member.name not in names for member in places):
        yield f"machines lack the label {label}: add it to the template, else lost ones cannot be found"


def _market(machine: Json) -> Market | None:
    scheduling = machine.get("scheduling")
    if not isinstance(scheduling, Mapping):
        return None
    is_spot = scheduling.get("provisioningModel") == "SPOT" or scheduling.get("preemptible")
    return Market.SPOT if is_spot else Market.ON_DEMAND


def _made_by(machine: Json) -> str:
    """Return the group that made a machine: Compute Engine writes it into its metadata."""
    items = machine.get("metadata", {}).get("items", ())
    return next((str(item.get("value", "")) for item in items if item.get("key") == "created-by"), "")


def _unix_s(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _zone(url: str) -> str:
    return url.partition("/zones/")[2].partition("/")[0]


def _tail(url: str) -> str:
    return url.rpartition("/")[2]
