"""What the fake metadata service of one machine has to say, for each of the three clouds; no sockets here."""

import itertools
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate

Json = dict[str, object]
REGIONS = {"aws": "us-east-1", "azure": "westeurope", "gcp": "us-central1"}


def iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True)
class Machine:
    """Who it is."""

    node: str = "vm-0"
    host: str = "127.0.0.1"
    zone: str = "a"
    kind: str = "toy.small"
    is_spot: bool = True


@dataclass(slots=True)
class Facts:
    """Everything a service says; `clock_offset_s` makes the cloud's clock differ from this machine's."""

    machine: Machine = field(default_factory=Machine)
    clock_offset_s: float = 0.0
    spot: Json | None = None
    rebalance: Json | None = None
    maintenance: list[Json] = field(default_factory=list)
    lifecycle: str | None = "InService"
    document: Json = field(default_factory=lambda: {"DocumentIncarnation": 1, "Events": []})
    gcp: dict[str, str] = field(default_factory=lambda: {"preempted": "FALSE", "maintenance-event": "NONE"})
    gcp_version: int = 1
    acknowledged: list[str] = field(default_factory=list)
    tokens: dict[str, float] = field(default_factory=dict)  # token -> monotonic end
    token_ttl_s: float | None = None  # shorter than what is asked for
    changed: threading.Condition = field(default_factory=threading.Condition)
    counter: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def now_s(self) -> float:
        """The cloud's Unix time."""
        return time.time() + self.clock_offset_s

    # --- AWS -------------------------------------------------------------------------------------------

    def new_token(self, asked_s: float) -> tuple[str, int]:
        """Return a token and the whole seconds it lives."""
        ttl_s = min(asked_s, self.token_ttl_s or asked_s)
        token = f"token-{next(self.counter)}=="
        self.tokens[token] = time.monotonic() + ttl_s
        return token, int(ttl_s)

    def is_valid(self, token: str) -> bool:
        return self.tokens.get(token, 0.0) > time.monotonic()

    def aws(self, path: str) -> str | None:
        """Return the text of a path below /latest; None: there is none."""
        tell = self._aws_paths().get(path)
        return None if tell is None else tell()

    def _aws_paths(self) -> dict[str, Callable[[], str | None]]:
        m, role = self.machine, "meta-data/iam/security-credentials/"
        return {
            "meta-data/instance-id": lambda: m.node,
            "meta-data/local-ipv4": lambda: m.host,
            "meta-data/instance-type": lambda: m.kind,
            "meta-data/instance-life-cycle": lambda: "spot" if m.is_spot else "on-demand",
            "meta-data/placement/availability-zone": lambda: REGIONS["aws"] + m.zone,
            "meta-data/placement/region": lambda: REGIONS["aws"],
            "meta-data/spot/instance-action": lambda: _text(self.spot),
            "meta-data/events/recommendations/rebalance": lambda: _text(self.rebalance),
            "meta-data/events/maintenance/scheduled": lambda: json.dumps(self.maintenance),
            "meta-data/autoscaling/target-lifecycle-state": lambda: self.lifecycle,
            "dynamic/instance-identity/document": lambda: _text(self._document()),
            role: lambda: "varuna-node",
            role + "varuna-node": lambda: _text(self._credentials()),
        }

    def _document(self) -> Json:
        m = self.machine
        return {
            "instanceId": m.node,
            "privateIp": m.host,
            "instanceType": m.kind,
            "availabilityZone": REGIONS["aws"] + m.zone,
            "region": REGIONS["aws"],
            "accountId": "123456789012",
            "version": "2017-09-30",
        }

    def _credentials(self) -> Json:
        return {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": "AKIATESTONLY",
            "SecretAccessKey": "test-only",
            "Token": "test-only",
            "LastUpdated": iso(self.now_s()),
            "Expiration": iso(self.now_s() + 6 * 3600),
        }

    # --- Azure -----------------------------------------------------------------------------------------

    def azure(self, path: str) -> Json | None:
        """Return the document of a path below /metadata; None: there is none."""
        m = self.machine
        compute: Json = {
            "name": m.node,
            "vmSize": m.kind,
            "zone": m.zone,
            "location": REGIONS["azure"],
            "priority": "Spot" if m.is_spot else "Regular",
        }
        address = {"privateIpAddress": m.host, "publicIpAddress": ""}
        network = {"interface": [{"ipv4": {"ipAddress": [address]}}]}
        documents: dict[str, Json] = {
            "instance": {"compute": compute, "network": network},
            "instance/compute": compute,
            "scheduledevents": self.document,
        }
        return documents.get(path)

    def events(self) -> list[Json]:
        found = self.document["Events"]
        assert isinstance(found, list)
        return found

    def new_document(self, events: list[Json]) -> None:
        incarnation = self.document.get("DocumentIncarnation", 0)
        assert isinstance(incarnation, int)
        self.document = {"DocumentIncarnation": incarnation + 1, "Events": events}

    def new_event(self, kind: str, in_s: float, resources: list[str], status: str) -> Json:
        started = status == "Started"
        return {
            "EventId": f"event-{next(self.counter)}",
            "EventType": kind,
            "ResourceType": "VirtualMachine",
            "Resources": resources,
            "EventStatus": status,
            "NotBefore": "" if started else formatdate(self.now_s() + in_s, usegmt=True),
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }

    # --- GCP -------------------------------------------------------------------------------------------

    def gcp_instance(self) -> Json:
        m, zone = self.machine, f"{REGIONS['gcp']}-{self.machine.zone}"
        return {
            "id": 1,
            "name": m.node,
            "zone": f"projects/1/zones/{zone}",
            "machineType": f"projects/1/machineTypes/{m.kind}",
            "networkInterfaces": [{"ip": m.host, "network": "projects/1/networks/default"}],
            "scheduling": {"preemptible": "TRUE" if m.is_spot else "FALSE", "onHostMaintenance": "TERMINATE"},
            "preempted": self.gcp["preempted"],
            "maintenanceEvent": self.gcp["maintenance-event"],
        }


def _text(value: Json | None) -> str | None:
    return None if value is None else json.dumps(value)
