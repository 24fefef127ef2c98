"""The `pools` of manager.yaml: strict records, one kind per provider. Nothing here touches a cloud."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Seconds = Annotated[float, Field(gt=0)]
Dollars = Annotated[float, Field(gt=0)]
PoolName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
NodeName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]
SshName = Annotated[str, StringConstraints(pattern=r"^[^\s-]\S*$")]  # `-...` is an option to ssh
Text = Annotated[str, StringConstraints(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class PoolBase(_Strict):
    """What every pool has."""

    name: PoolName
    min: Annotated[int, Field(ge=0)] = 0
    """Nodes kept even when nothing runs."""
    max: Annotated[int, Field(ge=0)] = 16
    """Never more nodes than this."""
    price: Annotated[float, Field(ge=0)] | None = None
    """Dollars per hour of one node, 0 for a machine of one's own; default: asked from the provider
    where it can tell."""


class LocalPool(PoolBase):
    """Agents as processes of this machine."""

    provider: Literal["local"] = "local"
    sized: bool = False
    """Start and end nodes with the demand; otherwise only `varuna up` does."""
    slots: Annotated[int, Field(ge=1)] = 1
    """Slots of a node that the manager starts."""


class SshHost(_Strict):
    """A machine whose agent the manager starts over ssh."""

    host: SshName
    """As ssh knows it: [USER@]HOST, or a name of its configuration."""
    node: NodeName
    """Name of the node; no other host of any pool may have it."""
    slots: Annotated[int, Field(ge=1)] = 1
    address: str = ""
    """Address that other nodes reach; default: HOST."""


class StaticPool(PoolBase):
    """Machines that dial in by themselves, and machines reached over ssh."""

    provider: Literal["static"]
    hosts: tuple[SshHost, ...] = ()
    command: Text = "varuna"
    """How the program is called on those machines."""


class TracePool(PoolBase):
    """A recorded pool, replayed on processes of this machine."""

    provider: Literal["trace"]
    file: Text
    """Recording: CSV of `milliseconds,add|remove,node`, or lines of `date, time: running count`."""
    speed_up: Annotated[float, Field(gt=0)] = 1.0
    start_s: Annotated[float, Field(ge=0)] = 0.0
    """Where in the recording to begin."""
    notice_s: Annotated[float, Field(ge=0)] = 0.0
    """Warning before a node vanishes, in real seconds; 0: none."""


class CloudPool(PoolBase):
    """What every pool of a cloud has."""

    handover: str = ""
    """Where machines find their join tickets: ssm:/PATH, keyvault:https://VAULT, or the URL of a private
    prefix of an object store; empty: tickets come some other way."""


class AwsPool(CloudPool):
    """An Auto Scaling group."""

    provider: Literal["aws"]
    group: Text
    """Name of the Auto Scaling group."""
    region: Text
    cluster: Text = "varuna"
    """Value of the tag `varuna:cluster` that our machines carry."""
    notices_queue: str = ""
    """URL of an SQS queue that EventBridge fills with interruption warnings; optional."""


class AzurePool(CloudPool):
    """A virtual machine scale set, Uniform or Flexible."""

    provider: Literal["azure"]
    subscription: Text
    resource_group: Text
    scale_set: Text


class GcpPool(CloudPool):
    """A managed instance group, zonal or regional."""

    provider: Literal["gcp"]
    project: Text
    group: Text
    zone: str = ""
    region: str = ""
    """Give exactly one of zone and region."""
    cluster: Text = "varuna"


AnyPool = Annotated[
    LocalPool | StaticPool | TracePool | AwsPool | AzurePool | GcpPool, Field(discriminator="provider")
]


class Sizing(_Strict):
    """How the pools follow the demand of the jobs."""

    policy: Literal["ordered", "cheapest"] = "ordered"
    """Which pool grows first: in the order of the file, or the one with the lowest price."""
    max_price: Dollars | None = None
    """Dollars per hour that all nodes together may cost."""
    poll_s: Seconds = 10.0
    """Every pool is read this often; a broken connection of a node asks at once."""
    idle_release_s: Seconds = 300.0
    """A node that no job uses is released after this."""
    boot_timeout_s: Seconds = 900.0
    """A machine whose agent has not joined by then is ended and replaced."""
    boot_attempts: Annotated[int, Field(ge=1)] = 3
    """After so many such machines in a row a pool is left alone for the longest back-off."""
    stray_grace_s: Seconds = 60.0
    """A machine with our tag that belongs to no group is ended after this."""
    backoff_s: Seconds = 60.0
    """First wait after a shortage of capacity; doubles with each further one."""
    backoff_cap_s: Seconds = 1800.0
    """Longest such wait."""
    leave_margin_s: Seconds = 10.0
    """A machine that waits for our word is let go this long before it ends anyway."""
