"""Managed instance groups of Google Compute Engine, over plain REST."""

import os

from varuna_manager.cloud.gcp.provider import GcpProvider
from varuna_manager.cloud.gcp.rest import PUBLIC_ENDPOINT, Rest
from varuna_manager.cloud.opening import Notes
from varuna_manager.pool_settings import GcpPool

PERMISSIONS = (
    "compute.instanceGroupManagers.get",
    "compute.instanceGroupManagers.update",
    "compute.instances.list",
    "compute.instances.delete",
    "compute.zoneOperations.get",
    "compute.regionOperations.get",
)
"""What the manager's service account needs."""


def open_gcp(settings: GcpPool, *, notes: Notes) -> GcpProvider:
    """Return the provider of a managed instance group; InvalidInput without the libraries.

    Another endpoint in $VARUNA_GCP_ENDPOINT is asked without credentials: none may leak to it.
    """
    endpoint = os.environ.get("VARUNA_GCP_ENDPOINT", "")
    rest = Rest(endpoint or PUBLIC_ENDPOINT, is_anonymous=bool(endpoint))
    return GcpProvider(settings, rest, notes)
