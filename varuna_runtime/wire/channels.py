"""Opens channels to a manager: plain ones on loopback, else TLS with what proves who calls."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from varuna_runtime.spec.addresses import is_loopback
from varuna_runtime.spec.errors import AccessRefused

SERVER_NAME = "varuna-manager"
"""Name in every manager's certificate, whatever its address is."""

Options = Sequence[tuple[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How to know the manager, and how to be known: by a certificate (nodes) or a bearer token (users)."""

    ca_pem: str
    certificate_pem: str = ""
    key_pem: str = field(default="", repr=False)
    bearer: str = field(default="", repr=False)


def refuse_plain(address: str, remedy: str) -> None:
    """Raise AccessRefused unless `address` (HOST:PORT) is this machine's: no secret leaves it unasked."""
    if not is_loopback(address.rpartition(":")[0]):
        raise AccessRefused(
            f"{address}: without {remedy} this would be plain text to another machine, which anyone on "
            "the way can read and change; for a network you trust, ask by name: VARUNA_INSECURE_PLAINTEXT=1"
        )


def open_channel(address: str, access: Access | None, options: Options) -> grpc.Channel:
    """Return a blocking channel; without `access` it is plain text."""
    if access is None:
        return grpc.insecure_channel(address, options=list(options))
    return grpc.secure_channel(address, _credentials(access), options=_named(options))


def open_aio_channel(address: str, access: Access | None, options: Options) -> grpc.aio.Channel:
    """Return a channel for asyncio; without `access` it is plain text."""
    if access is None:
        return grpc.aio.insecure_channel(address, options=list(options))
    return grpc.aio.secure_channel(address, _credentials(access), options=_named(options))


def _credentials(access: Access) -> grpc.ChannelCredentials:
    key, certificate = access.key_pem.encode() or None, access.certificate_pem.encode() or None
    channel = grpc.ssl_channel_credentials(access.ca_pem.encode(), key, certificate)
    if not access.bearer:
        return channel
    return grpc.composite_channel_credentials(channel, grpc.access_token_call_credentials(access.bearer))


def _named(options: Options) -> list[tuple[str, Any]]:
    return [*options, ("grpc.ssl_target_name_override", SERVER_NAME)]
