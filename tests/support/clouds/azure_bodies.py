"""The JSON that Azure Resource Manager shows of a fake world."""

from datetime import UTC, datetime

from tests.support.clouds.azure_world import Machine, Operation, ScaleSet, etag

Json = dict[str, object]

_POWER = {
    "running": "running",
    "failed-running": "running",
    "stopped": "stopped",
    "deallocated": "deallocated",
}
_PROVISIONING = {
    "creating": "Creating",
    "failed": "Failed",
    "failed-running": "Failed",
    "deleting": "Deleting",
}


def scale_set_body(subscription: str, seen: ScaleSet) -> Json:
    """Return a GET of a scale set."""
    profile: Json = {"priority": seen.priority}
    if seen.priority == "Spot":
        profile |= {"evictionPolicy": seen.eviction_policy, "billingProfile": {"maxPrice": -1.0}}
    properties: Json = {
        "orchestrationMode": "Flexible" if seen.is_flexible else "Uniform",
        "provisioningState": seen.state,
        "overprovision": seen.overprovision,
        "singlePlacementGroup": seen.single_placement_group,
        "virtualMachineProfile": profile,
        "timeCreated": iso(0.0),
        **seen.more,
    }
    if seen.restores:
        properties["spotRestorePolicy"] = {"enabled": True, "restoreTimeout": "PT1H"}
    if seen.repairs:
        properties["automaticRepairsPolicy"] = {"enabled": True, "gracePeriod": "PT10M"}
    return {
        "id": set_id(subscription, seen),
        "name": seen.name,
        "type": "Microsoft.Compute/virtualMachineScaleSets",
        "location": "westeurope",
        "etag": etag(seen),
        "tags": seen.tags,
        "sku": {"name": seen.size, "tier": "Standard", "capacity": seen.capacity},
        "zones": list(seen.zones),
        "properties": properties,
    }


def machine_body(subscription: str, seen: ScaleSet, machine: Machine, *, has_view: bool) -> Json:
    """Return a machine as a list shows it; `has_view`: with `$expand=instanceView`."""
    state = _PROVISIONING.get(machine.state, "Succeeded")
    properties: Json = {
        "provisioningState": state,
        "timeCreated": iso(machine.created_s),
    }
    if has_view:
        properties["instanceView"] = {"statuses": _statuses(machine, state)}
    body: Json = {
        "id": f"{set_id(subscription, seen)}/virtualMachines/{machine.id}",
        "name": machine.name,
        "type": "Microsoft.Compute/virtualMachineScaleSets/virtualMachines",
        "location": "westeurope",
        "tags": seen.tags,
        "zones": [machine.zone] if machine.zone else [],
        "properties": properties,
    }
    if not seen.is_flexible:
        return body | {"instanceId": machine.id, "sku": {"name": seen.size, "tier": "Standard"}}
    properties |= {
        "hardwareProfile": {"vmSize": seen.size},
        "virtualMachineScaleSet": {"id": set_id(subscription, seen)},
        "priority": seen.priority,
    }
    group = f"/subscriptions/{subscription}/resourceGroups/{seen.resource_group}"
    return body | {
        "id": f"{group}/providers/Microsoft.Compute/virtualMachines/{machine.name}",
        "type": "Microsoft.Compute/virtualMachines",
    }


def operation_body(operation: Operation) -> Json:
    """Return what the URL of Azure-AsyncOperation says."""
    if not operation.is_over:
        return {"name": operation.id, "status": "InProgress"}
    if operation.error is None:
        return {"name": operation.id, "status": "Succeeded"}
    return {"name": operation.id, "status": "Failed", "error": operation.error}


def set_id(subscription: str, seen: ScaleSet) -> str:
    """Return the resource id of a scale set."""
    group = f"/subscriptions/{subscription}/resourceGroups/{seen.resource_group}"
    return f"{group}/providers/Microsoft.Compute/virtualMachineScaleSets/{seen.name}"


def iso(at_s: float) -> str:
    """Return Unix time as ARM writes it."""
    return datetime.fromtimestamp(at_s, UTC).isoformat()


def _statuses(machine: Machine, state: str) -> list[Json]:
    code = f"ProvisioningState/{state.lower()}"
    if machine.state == "failed":
        return [{"code": f"{code}/AllocationFailed", "level": "Error", "message": machine.reason}]
    statuses: list[Json] = [{"code": code, "level": "Error" if state == "Failed" else "Info"}]
    if machine.reason:
        statuses[0]["message"] = machine.reason
    if machine.state in _POWER:
        statuses.append({"code": f"PowerState/{_POWER[machine.state]}", "level": "Info"})
    return statuses
