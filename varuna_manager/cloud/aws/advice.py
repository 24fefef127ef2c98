"""What a person should change about a group, and what its next machine is; pure."""

from typing import TYPE_CHECKING

from varuna_manager.cloud.aws.machines import CLUSTER_TAG
from varuna_manager.pool_settings import AwsPool

if TYPE_CHECKING:
    from mypy_boto3_autoscaling.type_defs import (
        AutoScalingGroupTypeDef,
        InstancesDistributionOutputTypeDef,
        LaunchTemplateOverridesOutputTypeDef,
        LaunchTemplateSpecificationTypeDef,
    )
    from mypy_boto3_ec2.type_defs import ResponseLaunchTemplateDataTypeDef

_NEEDED_PROCESSES = ("Launch", "Terminate", "ReplaceUnhealthy", "HealthCheck")


def advice(
    group: "AutoScalingGroupTypeDef",
    template: "ResponseLaunchTemplateDataTypeDef | None",
    settings: AwsPool,
) -> tuple[str, ...]:
    """Return one sentence for each setting of the group that endangers running nodes or costs money."""
    return (
        *_about_safety(group),
        *_about_bounds(group, settings),
        *_about_machines(group, settings),
        *_about_spot(group, template),
    )


def template_of(group: "AutoScalingGroupTypeDef") -> "LaunchTemplateSpecificationTypeDef | None":
    """Return which launch template the group uses; None for a launch configuration."""
    policy = group.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {})
    return policy.get("LaunchTemplateSpecification") or group.get("LaunchTemplate")


def is_weighted(group: "AutoScalingGroupTypeDef") -> bool:
    """Return whether the target counts something other than machines."""
    weights = {o.get("WeightedCapacity", "1") for o in _overrides(group)}
    return weights - {"1"} != set() or group.get("DesiredCapacityType", "units") not in ("", "units")


def spot_kinds(
    group: "AutoScalingGroupTypeDef", template: "ResponseLaunchTemplateDataTypeDef | None", num_alive: int
) -> tuple[str, ...]:
    """Return the instance types of which the next machine is, if it is a Spot machine for sure; else none."""
    named = "" if template is None else template.get("InstanceType", "")
    if "MixedInstancesPolicy" not in group:
        market = {} if template is None else template.get("InstanceMarketOptions", {})
        return (named,) if named and market.get("MarketType") == "spot" else ()
    spread = _distribution(group)
    if spread.get("OnDemandPercentageAboveBaseCapacity", 100) > 0:
        return ()
    if num_alive < spread.get("OnDemandBaseCapacity", 0):
        return ()
    if any("InstanceRequirements" in o for o in _overrides(group)):
        return ()  # AWS chooses among all types with these attributes
    kinds = {o["InstanceType"] for o in _overrides(group) if "InstanceType" in o} or {named} - {""}
    return tuple(sorted(kinds))


def _about_safety(group: "AutoScalingGroupTypeDef") -> list[str]:
    suspended = {p.get("ProcessName", "") for p in group.get("SuspendedProcesses", [])}
    said = []
    if status := group.get("Status"):  # told only of a group that is being deleted
        said.append(f"the group says {status}; create it anew, or take the pool out of the settings")
    if "AZRebalance" not in suspended and len(group["AvailabilityZones"]) > 1:
        said.append(
            "the group may end busy nodes to balance its zones; suspend its process AZRebalance, "
            "or use one group per zone"
        )
    if not group.get("NewInstancesProtectedFromScaleIn"):
        said.append(
            "new nodes are not protected from scale-in, and a target that is not met cannot be lowered; "
            "set NewInstancesProtectedFromScaleIn"
        )
    said += [
        f"the process {name} of the group is suspended; resume it"
        for name in _NEEDED_PROCESSES
        if name in suspended
    ]
    if lifetime_s := group.get("MaxInstanceLifetime"):
        said.append(f"MaxInstanceLifetime ends nodes after {lifetime_s} s, busy or not; set it to 0")
    if group.get("CapacityRebalance"):
        said.append(
            "capacity rebalancing is on: the group ends nodes on a mere hint, and has more than its target "
            "for a while; switch it off unless that is meant"
        )
    return said


def _about_bounds(group: "AutoScalingGroupTypeDef", settings: AwsPool) -> list[str]:
    said = []
    if group["MaxSize"] < settings.max:
        said.append(
            f"MaxSize {group['MaxSize']} of the group is below max {settings.max} of the pool; raise it"
        )
    if group["MinSize"] > settings.min:
        said.append(
            f"MinSize {group['MinSize']} of the group is above min {settings.min} of the pool; lower it"
        )
    if is_weighted(group):
        said.append(
            "the group counts weights or units instead of machines, so it cannot be sized; remove them"
        )
    return said


def _about_machines(group: "AutoScalingGroupTypeDef", settings: AwsPool) -> list[str]:
    carried = {t.get("Value") for t in group.get("Tags", []) if _is_propagated_tag(t)}
    said = []
    if settings.cluster not in carried:
        said.append(
            f"the group does not put the tag {CLUSTER_TAG}={settings.cluster} on its machines, so one that "
            "leaves it is not found any more; add the tag with PropagateAtLaunch"
        )
    if group.get("WarmPoolConfiguration"):
        said.append("the group has a warm pool, which costs money and is not looked after here; remove it")
    kept = [
        m["InstanceId"] for m in group.get("Instances", []) if m["LifecycleState"] == "Terminating:Retained"
    ]
    if kept:
        said.append(f"{', '.join(sorted(kept))}: kept by the group after a hook was abandoned; end by hand")
    return said


def _is_propagated_tag(found: object) -> bool:
    return (
        isinstance(found, dict) and found.get("Key") == CLUSTER_TAG and bool(found.get("PropagateAtLaunch"))
    )


def _about_spot(
    group: "AutoScalingGroupTypeDef", template: "ResponseLaunchTemplateDataTypeDef | None"
) -> list[str]:
    if "MixedInstancesPolicy" not in group:
        return []
    spread, said = _distribution(group), []
    if template is not None and template.get("InstanceMarketOptions"):
        said.append(
            "the launch template sets InstanceMarketOptions, which a mixed instances policy does not allow; "
            "remove them from the template"
        )
    if spread.get("OnDemandPercentageAboveBaseCapacity", 100) >= 100:
        return said
    if spread.get("SpotAllocationStrategy", "lowest-price") == "lowest-price":
        said.append(
            "Spot machines come from the cheapest and most interrupted markets; "
            "set SpotAllocationStrategy to price-capacity-optimized"
        )
    if spread.get("SpotMaxPrice"):
        said.append(
            f"SpotMaxPrice {spread['SpotMaxPrice']} adds interruptions and saves nothing below the on-demand "
            "price; remove it"
        )
    return said


def _distribution(group: "AutoScalingGroupTypeDef") -> "InstancesDistributionOutputTypeDef":
    return group.get("MixedInstancesPolicy", {}).get("InstancesDistribution", {})


def _overrides(group: "AutoScalingGroupTypeDef") -> "list[LaunchTemplateOverridesOutputTypeDef]":
    return group.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {}).get("Overrides", [])
