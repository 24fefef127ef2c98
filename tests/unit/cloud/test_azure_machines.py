"""From Azure's two states of a machine to our one."""

from dataclasses import dataclass

import pytest

from varuna_manager.cloud.azure.machines import phase_of
from varuna_manager.cloud.provider import InstancePhase


@dataclass(frozen=True)
class Status:
    code: str | None
    message: str | None = None


@pytest.mark.parametrize(
    ("provisioning", "codes", "phase"),
    [
        ("Creating", (), InstancePhase.STARTING),
        ("Creating", ("ProvisioningState/creating",), InstancePhase.STARTING),
        ("Creating", ("ProvisioningState/creating", "PowerState/running"), InstancePhase.RUNNING),
        ("Updating", (), InstancePhase.STARTING),
        ("", (), InstancePhase.STARTING),
        ("Succeeded", ("ProvisioningState/succeeded", "PowerState/starting"), InstancePhase.STARTING),
        ("Succeeded", ("ProvisioningState/succeeded", "PowerState/running"), InstancePhase.RUNNING),
        ("Succeeded", ("PowerState/stopping",), InstancePhase.LEAVING),
        ("Updating", ("PowerState/deallocating",), InstancePhase.LEAVING),
        ("Succeeded", ("PowerState/stopped",), InstancePhase.STOPPED),
        ("Succeeded", ("PowerState/deallocated",), InstancePhase.STOPPED),
        ("Deleting", ("ProvisioningState/deleting", "PowerState/running"), InstancePhase.LEAVING),
        ("Failed", ("ProvisioningState/failed",), InstancePhase.STOPPED),
        ("Failed", ("ProvisioningState/failed", "PowerState/deallocated"), InstancePhase.STOPPED),
        (
            "Failed",
            ("ProvisioningState/failed/VMExtensionError", "PowerState/running"),
            InstancePhase.RUNNING,
        ),
        ("Succeeded", (), InstancePhase.RUNNING),
        ("Succeeded", ("PowerState/hibernating-in-2031",), InstancePhase.RUNNING),
        ("Creating", ("PowerState/hibernating-in-2031",), InstancePhase.STARTING),
        ("Succeeded", (None,), InstancePhase.RUNNING),
    ],
)
def test_a_machine_has_the_phase_of_both_its_states(
    provisioning: str, codes: tuple[str | None, ...], phase: InstancePhase
) -> None:
    assert phase_of(provisioning, [Status(c) for c in codes])[0] is phase


@pytest.mark.parametrize(
    ("statuses", "reason"),
    [
        ([Status("ProvisioningState/failed/AllocationFailed", "no room")], "AllocationFailed: no room"),
        ([Status("ProvisioningState/failed")], "its provisioning failed"),
        ([Status("ProvisioningState/failed", "why")], "its provisioning failed: why"),
        ([], "its provisioning failed"),
    ],
)
def test_a_failed_machine_says_why_in_azures_words(statuses: list[Status], reason: str) -> None:
    assert phase_of("Failed", statuses) == (InstancePhase.STOPPED, reason)
