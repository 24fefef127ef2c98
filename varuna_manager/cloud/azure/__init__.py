"""Pools of Azure virtual machines: one scale set, Uniform or Flexible, is one pool."""

from typing import TYPE_CHECKING

from varuna_manager.pool_settings import AzurePool
from varuna_runtime.spec.errors import InvalidInput

if TYPE_CHECKING:
    from varuna_manager.cloud.azure.scale_set import AzureProvider
    from varuna_manager.cloud.opening import Notes


def open_azure(settings: AzurePool, *, notes: "Notes") -> "AzureProvider":
    """Return the provider of a scale set; InvalidInput when the SDK is missing. It asks nothing yet."""
    try:
        from varuna_manager.cloud.azure.compute import Compute
        from varuna_manager.cloud.azure.scale_set import AzureProvider
    except ModuleNotFoundError as err:
        raise InvalidInput(
            f"pool {settings.name}: the provider azure wants the package {err.name}, which is not installed; "
            "pip install 'varuna[azure]'"
        ) from err
    return AzureProvider(settings, notes, Compute(settings))
