"""Azure's compute API as one scale set needs it: each call is one request (a list: its pages), none waits.

The only module that reads the two variables by which Azure is found elsewhere than where it is:
VARUNA_AZURE_ENDPOINT (base URL of Resource Manager) and VARUNA_AZURE_CA (PEM of who vouches for it).
Credentials are those of `DefaultAzureCredential` either way.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final

from azure.core import MatchConditions
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.core.pipeline.policies import RetryPolicy
from azure.core.polling import LROPoller
from azure.core.polling.base_polling import BadResponse, BadStatus, OperationFailed
from azure.identity import DefaultAzureCredential
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.compute.models import (
    Sku,
    VirtualMachineScaleSetUpdate,
    VirtualMachineScaleSetVMInstanceRequiredIDs,
)
from azure.mgmt.core.polling.arm_polling import ARMPolling

from varuna_manager.pool_settings import AzurePool

OPERATIONS: Final = frozenset(
    {
        "Microsoft.Compute/locations/operations/read",
        "Microsoft.Compute/virtualMachineScaleSets/delete/action",
        "Microsoft.Compute/virtualMachineScaleSets/read",
        "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/read",
        "Microsoft.Compute/virtualMachineScaleSets/write",
        "Microsoft.Compute/virtualMachines/delete",
        "Microsoft.Compute/virtualMachines/read",
    }
)
"""Every action of Azure's access control that a pool uses, Uniform and Flexible together."""

_CONNECT_S: Final = 5.0
_READ_S: Final = 30.0
_WITH_RETRIES_S: Final = 60.0  # no new attempt of a call after this
_PAUSE_S: Final = 0.3  # between two attempts of a call, doubled each time
_LONGEST_PAUSE_S: Final = 3.0


class Write(StrEnum):
    """Kinds of long-running operation."""

    CAPACITY = "capacity"
    DELETE = "delete"


class Compute:
    """The calls; every one may raise AzureError."""

    def __init__(self, settings: AzurePool) -> None:
        where: dict[str, Any] = {}
        if endpoint := os.environ.get("VARUNA_AZURE_ENDPOINT"):
            where["base_url"] = endpoint
        if authority := os.environ.get("VARUNA_AZURE_CA"):
            where["connection_verify"] = authority
        self._group = settings.resource_group
        self._name = settings.scale_set
        self._id = (
            f"/subscriptions/{settings.subscription}/resourceGroups/{settings.resource_group}"
            f"/providers/Microsoft.Compute/virtualMachineScaleSets/{settings.scale_set}"
        )
        self._credential = DefaultAzureCredential()
        self._client = ComputeManagementClient(
            self._credential,
            settings.subscription,
            connection_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            retry_policy=_ShortPatience(
                retry_total=3,
                retry_backoff_factor=_PAUSE_S,
                retry_backoff_max=_LONGEST_PAUSE_S,
                timeout=_WITH_RETRIES_S,
            ),
            **where,
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._credential.close()

    def scale_set(self) -> Any:
        """Return the scale set."""
        return self._client.virtual_machine_scale_sets.get(self._group, self._name)

    def machines(self, *, is_flexible: bool) -> list[Any]:
        """Return all machines of the set with their instance views, page by page."""
        if is_flexible:
            named = f"'virtualMachineScaleSet/id' eq '{self._id}'"
            return list(self._client.virtual_machines.list(self._group, filter=named, expand="instanceView"))
        return list(
            self._client.virtual_machine_scale_set_vms.list(self._group, self._name, expand="instanceView")
        )

    def set_capacity(self, capacity: int, etag: str | None) -> str:
        """Begin to set the capacity if the set is still that of `etag`; returns a handle of the operation."""
        poller = self._client.virtual_machine_scale_sets.begin_update(
            self._group,
            self._name,
            VirtualMachineScaleSetUpdate(sku=Sku(capacity=capacity)),
            etag=etag,
            match_condition=MatchConditions.IfNotModified if etag else None,
            polling=_NoLook(),
        )
        return str(poller.continuation_token())

    def delete_instances(self, ids: Sequence[str]) -> str:
        """Begin to delete instances of a Uniform set; returns a handle of the operation."""
        poller = self._client.virtual_machine_scale_sets.begin_delete_instances(
            self._group,
            self._name,
            VirtualMachineScaleSetVMInstanceRequiredIDs(instance_ids=list(ids)),
            polling=_NoLook(),
        )
        return str(poller.continuation_token())

    def delete_machine(self, name: str) -> None:
        """Begin to delete a machine of a Flexible set; a list shows how far it is."""
        with suppress(ResourceNotFoundError):  # that is what we wanted
            self._client.virtual_machines.begin_delete(self._group, name, polling=_NoLook())

    def is_over(self, write: Write, handle: str) -> bool:
        """Look once at an operation; False while it runs, HttpResponseError when it failed.

        An operation that Azure no longer knows, or a handle that this SDK cannot read, is over.
        """
        sets = self._client.virtual_machine_scale_sets
        options: dict[str, Any] = {"polling": _OneLook(), "continuation_token": handle}
        try:
            match write:
                case Write.CAPACITY:
                    poller: LROPoller[Any] = sets.begin_update(
                        self._group, self._name, VirtualMachineScaleSetUpdate(), **options
                    )
                case Write.DELETE:
                    poller = sets.begin_delete_instances(
                        self._group,
                        self._name,
                        VirtualMachineScaleSetVMInstanceRequiredIDs(instance_ids=[]),
                        **options,
                    )
            poller.wait()
        except ValueError:
            return True
        except HttpResponseError as err:
            if err.status_code == 404:
                return True
            raise
        return str(poller.status()).lower() == "succeeded"


class _ShortPatience(RetryPolicy[Any, Any]):
    """Retries here bridge a blip; when Azure asks for a pause, the pause is the caller's to keep."""

    def is_retry(self, settings: dict[str, Any], response: Any) -> bool:
        """Return whether to ask again within this call."""
        answer = response.http_response
        if answer.status_code == 429 or answer.headers.get("Retry-After"):
            return False
        is_again = bool(super().is_retry(settings, response))
        if is_again:
            answer.close()  # the SDK forgets to, and the connection would linger
        return is_again


class _NoLook(ARMPolling):
    """Begins an operation and leaves it at that."""

    def run(self) -> None:
        """Do nothing."""


class _OneLook(ARMPolling):
    """Asks once how far an operation is."""

    def run(self) -> None:
        """Ask; raises HttpResponseError when the operation failed or the question did."""
        try:
            self.update_status()
            if self.status().lower() in ("failed", "canceled"):
                raise OperationFailed("the operation failed or was cancelled")
        except (BadStatus, BadResponse, OperationFailed) as err:
            raise HttpResponseError(response=self._pipeline_response.http_response, error=err) from err
