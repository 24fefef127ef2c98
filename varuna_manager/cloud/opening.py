"""From the settings of a pool to its provider; knows every adapter, each loaded lazily."""

from collections.abc import Callable
from typing import Protocol, assert_never

from varuna_manager.cloud.provider import Provider
from varuna_manager.home import Home
from varuna_manager.pool_settings import (
    AnyPool,
    AwsPool,
    AzurePool,
    GcpPool,
    LocalPool,
    StaticPool,
    TracePool,
)


class Notes(Protocol):
    """Short texts of one pool that outlive the manager, such as the handle of a write under way.

    Calls block; each is durable when it returns. Safe from any thread.
    """

    def get(self, key: str) -> str | None:
        """Return the text under `key`; None if there is none."""
        ...

    def put(self, key: str, text: str) -> None:
        """Keep `text` under `key`, in the place of what was there."""
        ...

    def remove(self, key: str) -> None:
        """Forget what is under `key`, if anything."""
        ...


def open_provider(
    settings: AnyPool,
    *,
    notes: Notes,
    home: Home,
    manager_address: str,
    ticket: Callable[[str], str] | None = None,
) -> Provider:
    """Return the provider of a pool; InvalidInput when its SDK is missing. It asks no cloud yet.

    `notes` are those of this pool; `manager_address` is where nodes that we start ourselves call, and
    `ticket` makes the one with which such a node joins; None: the manager speaks plain text.
    """
    match settings:
        case LocalPool():
            from varuna_manager.cloud.local import open_local

            return open_local(settings, home=home, manager_address=manager_address, ticket=ticket)
        case StaticPool():
            from varuna_manager.cloud.static import open_static

            return open_static(settings, notes=notes, manager_address=manager_address, ticket=ticket)
        case TracePool():
            from varuna_manager.cloud.trace import open_trace

            return open_trace(
                settings, notes=notes, home=home, manager_address=manager_address, ticket=ticket
            )
        case AzurePool():
            from varuna_manager.cloud.azure import open_azure

            return open_azure(settings, notes=notes)
        case GcpPool():
            from varuna_manager.cloud.gcp import open_gcp

            return open_gcp(settings, notes=notes)
        case AwsPool():
            from varuna_manager.cloud.aws import open_aws

            return open_aws(settings, notes=notes)
        case _:
            assert_never(settings)
