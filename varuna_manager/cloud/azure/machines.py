"""From what Azure shows of a scale set and its machines to our words; pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from varuna_manager.cloud.provider import Instance, InstancePhase, Market

_MOST: Final = 1000  # of a scale set, by Azure's own limit
_MOST_IN_ONE_PLACEMENT_GROUP: Final = 100

_PHASES: Final = {
    "starting": InstancePhase.STARTING,
    "running": InstancePhase.RUNNING,
    "stopping": InstancePhase.LEAVING,
    "deallocating": InstancePhase.LEAVING,
    "stopped": InstancePhase.STOPPED,
    "deallocated": InstancePhase.STOPPED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A scale set."""

    capacity: int
    etag: str | None
    size: str
    market: Market
    is_flexible: bool
    is_busy: bool  # Azure works on the set itself
    fills_up: bool  # Azure restores evicted machines by itself
    may_exceed: bool  # Azure makes more machines than asked for and ends some of them
    most: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine of a scale set; `id` is what a delete of Uniform instances wants."""

    instance: Instance
    id: str


def group_of(scale_set: Any) -> Group:
    """Return a scale set of the SDK."""
    properties = scale_set.properties
    profile = properties.virtual_machine_profile
    restore = properties.spot_restore_policy
    return Group(
        capacity=int(scale_set.sku.capacity or 0),
        etag=scale_set.etag,
        size=scale_set.sku.name or "",
        market=_market(profile.priority if profile else None),
        is_flexible=_word(properties.orchestration_mode) == "flexible",
        is_busy=_word(properties.provisioning_state) in ("creating", "updating", "deleting"),
        fills_up=bool(restore and restore.enabled),
        may_exceed=bool(properties.overprovision),
        most=_MOST_IN_ONE_PLACEMENT_GROUP if properties.single_placement_group else _MOST,
        warnings=_warnings(properties, profile),
    )


def machine_of(vm: Any, group: Group) -> Machine:
    """Return a machine of the SDK, listed with its instance view."""
    properties = vm.properties
    statuses = properties.instance_view.statuses if properties.instance_view else None
    phase, reason = phase_of(properties.provisioning_state or "", statuses or ())
    hardware = properties.hardware_profile
    size = vm.get("sku", {}).get("name") or (hardware.vm_size if hardware else None)
    priority = properties.get("priority")
    return Machine(
        id=vm.get("instanceId") or "",
        instance=Instance(
            node=vm.name,
            phase=phase,
            reason=reason,
            since_s=properties.time_created.timestamp() if properties.time_created else None,
            zone=vm.zones[0] if vm.zones else "",
            kind=str(size or group.size),
            market=_market(priority) if priority else group.market,
        ),
    )


def phase_of(provisioning: str, statuses: Sequence[Any]) -> tuple[InstancePhase, str]:
    """Return the phase of a machine and why it is no good, in Azure's words.

    A machine that is being created has no power state yet. One whose allocation failed never gets one and
    stays until somebody deletes it: STOPPED, so that it is released. One that runs although a later
    operation on it failed does its work: RUNNING.
    """
    state = provisioning.lower()
    power = _power(statuses)
    if state == "deleting":
        return InstancePhase.LEAVING, "Azure is deleting it"
    if state == "failed" and power not in ("running", "starting"):
        return InstancePhase.STOPPED, _failure(statuses)
    if power in _PHASES:
        phase = _PHASES[power]
        is_well = phase in (InstancePhase.STARTING, InstancePhase.RUNNING)
        return phase, "" if is_well else f"its power state is {power}"
    if power or state == "succeeded":  # a state we do not know, or none: judge by whether it was made
        return (InstancePhase.STARTING if state == "creating" else InstancePhase.RUNNING), ""
    return InstancePhase.STARTING, ""


def _power(statuses: Sequence[Any]) -> str:
    codes = [str(s.code or "") for s in statuses]
    return next((c.partition("/")[2].lower() for c in codes if c.startswith("PowerState/")), "")


def _failure(statuses: Sequence[Any]) -> str:
    for status in statuses:
        kind, _, rest = str(status.code or "").partition("/")
        if kind == "ProvisioningState":
            words = [rest.partition("/")[2] or "its provisioning failed", status.message or ""]
            return ": ".join(w for w in words if w)
    return "its provisioning failed"


def _market(priority: Any) -> Market:
    return Market.SPOT if _word(priority) in ("spot", "low") else Market.ON_DEMAND


def _word(value: Any) -> str:
    """Return a word of the SDK, which may be an enum member or the text of one it does not know."""
    return str(getattr(value, "value", value) or "").lower()


def _warnings(properties: Any, profile: Any) -> tuple[str, ...]:
    is_spot = _market(profile.priority if profile else None) is Market.SPOT
    eviction = _word(profile.eviction_policy if profile else None)
    billing = profile.billing_profile if profile else None
    restore, repairs = properties.spot_restore_policy, properties.automatic_repairs_policy
    upgrade, resiliency = properties.upgrade_policy, properties.resiliency_policy
    os_upgrade = upgrade.automatic_os_upgrade_policy if upgrade else None
    rebalancing = resiliency.automatic_zone_rebalancing_policy if resiliency else None
    told = (
        (
            is_spot and eviction != "delete",
            "eviction policy Deallocate: evicted machines stay, count against the quota and their disks "
            "cost money until they are released; use Delete",
        ),
        (
            bool(restore and restore.enabled),
            "spot restore is enabled: Azure brings machines back besides the ones asked for here, so that "
            "there can be too many; disable it",
        ),
        (
            bool(properties.overprovision),
            "overprovision is on: Azure makes more machines than asked for and ends some of them, even "
            "ones that have joined; set it to false",
        ),
        (
            bool(repairs and repairs.enabled),
            "automatic repairs are on: Azure may replace machines that run a job; disable them",
        ),
        (
            _word(upgrade.mode if upgrade else None) in ("automatic", "rolling"),
            "the upgrade policy is not Manual: a change of the scale set restarts machines that run a job; "
            "set its mode to Manual",
        ),
        (
            bool(os_upgrade and os_upgrade.enable_automatic_os_upgrade),
            "automatic OS upgrades are on: they replace the disks of machines that run a job; disable them",
        ),
        (
            bool(rebalancing and rebalancing.enabled),
            "automatic zone rebalancing is on: Azure ends machines that run a job; disable it",
        ),
        (
            bool(is_spot and billing and billing.max_price is not None and billing.max_price > 0),
            "a highest price is set for spot machines: they are evicted for price too; use -1",
        ),
    )
    return tuple(text for is_so, text in told if is_so)
