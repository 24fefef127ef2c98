"""Who this machine is, in the words of its cloud's metadata service.

A node's id is the provider's id of the machine: EC2's instance id, Azure's and Compute Engine's VM name.
"""

import asyncio
import dataclasses
import ipaddress
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from varuna_runtime.agent.clouds import Cloud
from varuna_runtime.agent.metadata import AwsMetadata, Metadata, expect_ok, in_brief, json_of
from varuna_runtime.spec.errors import MetadataUnavailable

_AZURE = "/metadata/instance?api-version=2021-02-01&format=json"
_GCP = "/computeMetadata/v1/instance/?recursive=true"
_AGAIN_S = 0.5
_PATIENCE_S, _HASTE_S = 10.0, 2.0  # without a name there is nothing to join as; without an address there is
_log = structlog.get_logger("varuna.agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One machine; what a cloud does not say is empty."""

    node: str
    host: str  # its private address
    zone: str = ""
    kind: str = ""  # instance type, VM size
    market: str = ""  # spot or on-demand


def identify(cloud: Cloud, endpoint: str, within_s: float) -> Identity:
    """Return this machine's identity; raises MetadataUnavailable after `within_s` seconds of asking."""
    return asyncio.run(_identify(cloud, endpoint, within_s))


async def _identify(cloud: Cloud, endpoint: str, within_s: float) -> Identity:
    last: MetadataUnavailable | None = None
    try:
        async with asyncio.timeout(within_s):
            while True:
                try:
                    return await _ASKING[cloud](endpoint)
                except MetadataUnavailable as err:
                    last = err
                await asyncio.sleep(_AGAIN_S)
    except TimeoutError as err:
        raise MetadataUnavailable(
            f"the metadata service of {cloud} did not say in {within_s:g} s who this machine is: "
            f"{last or 'no answer'}; is this a machine of {cloud}? Otherwise give --node and --host"
        ) from err


async def _aws(endpoint: str) -> Identity:
    service = AwsMetadata(endpoint)
    try:
        market = await service.text("instance-life-cycle")
        return checked(
            node=await service.text("instance-id"),
            host=await service.text("local-ipv4"),
            zone=await service.text("placement/availability-zone"),
            kind=await service.text("instance-type"),
            market=market if market in ("spot", "on-demand") else "",
        )
    finally:
        await service.close()


async def _azure(endpoint: str) -> Identity:
    return azure_identity(await _text(endpoint, _AZURE, {"Metadata": "true"}))


async def _gcp(endpoint: str) -> Identity:
    return gcp_identity(await _text(endpoint, _GCP, {"Metadata-Flavor": "Google"}))


async def _text(endpoint: str, path: str, headers: dict[str, str]) -> str:
    service = Metadata(endpoint)
    try:
        return expect_ok(await service.ask(path, headers), f"GET {path}").text
    finally:
        await service.close()


_ASKING: dict[Cloud, Callable[[str], Awaitable[Identity]]] = {
    Cloud.AWS: _aws,
    Cloud.AZURE: _azure,
    Cloud.GCP: _gcp,
}


def azure_identity(text: str) -> Identity:
    """Read the instance document; raises MetadataUnavailable."""
    value = json_of(text, _AZURE)
    priority = _at(value, "compute", "priority")
    return checked(
        node=_at(value, "compute", "name"),
        host=_at(value, "network", "interface", 0, "ipv4", "ipAddress", 0, "privateIpAddress"),
        zone=_at(value, "compute", "zone"),
        kind=_at(value, "compute", "vmSize"),
        market="spot" if priority in ("Spot", "Low") else "on-demand",
    )


def gcp_identity(text: str) -> Identity:
    """Read the instance document; zone and type come as paths. Raises MetadataUnavailable."""
    value = json_of(text, _GCP)
    return checked(
        node=_at(value, "name"),
        host=_at(value, "networkInterfaces", 0, "ip"),
        zone=_at(value, "zone").rpartition("/")[2],
        kind=_at(value, "machineType").rpartition("/")[2],
        market="spot" if _at(value, "scheduling", "preemptible") == "TRUE" else "on-demand",
    )


def checked(*, node: str, host: str, zone: str, kind: str, market: str) -> Identity:
    """Return the identity if it names a node and an address; raises MetadataUnavailable."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", node) is None:
        raise MetadataUnavailable(f"the metadata service named this machine {in_brief(node)}, wanted a name")
    try:
        ipaddress.ip_address(host)
    except ValueError as err:
        raise MetadataUnavailable(
            f"the metadata service gave {in_brief(host)} as this machine's private address, wanted an address"
        ) from err
    return Identity(node=node, host=host, zone=zone, kind=kind, market=market)


def _at(value: object, *path: str | int) -> str:
    """Return the text at a path of keys and indices; empty if there is none."""
    for step in path:
        try:
            value = value[step]  # type: ignore[index]
        except (LookupError, TypeError):
            return ""
    return value if isinstance(value, str) else ""


def node_and_host(cloud: Cloud, endpoint: str, node: str, host: str) -> tuple[str, str]:
    """Return the given node and host, and what was not given from the metadata service.

    Raises MetadataUnavailable if that leaves no node; the host may stay empty.
    """
    if node and host:
        return node, host
    try:
        found = identify(cloud, endpoint, _PATIENCE_S if not node else _HASTE_S)
    except MetadataUnavailable as err:
        if not node:
            raise
        _log.warning("address not found", reason=str(err))
        return node, host
    _log.info("identified", **dataclasses.asdict(found))
    return node or found.node, host or found.host
