"""A real server that plays the part of the Compute Engine API that managed instance groups need.

Machines come to life by themselves, one state at each listing, so that no test waits for a clock.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PROJECT = "proj"
LABEL = ("varuna-cluster", "varuna")
_LIFE = ("", "PROVISIONING", "STAGING", "RUNNING")
_API = "https://www.googleapis.com/compute/v1/projects"
EXHAUSTED = {
    "code": "ZONE_RESOURCE_POOL_EXHAUSTED",
    "message": "The zone does not have enough resources available to fulfil the request.",
}

Json = dict[str, Any]


@dataclass
class Machine:
    """A place of a group and the machine on it."""

    name: str
    zone: str
    number: int
    action: str = "CREATING"
    status: str = ""
    errors: list[Json] = field(default_factory=list)
    created_by: str = ""

    @property
    def url(self) -> str:
        return f"{_API}/{PROJECT}/zones/{self.zone}/instances/{self.name}"


@dataclass
class Group:
    """One managed instance group; `settings` are merged into what GET answers."""

    name: str
    zone: str = ""
    region: str = ""
    target: int = 0
    stock: int = 1000  # machines the market has
    machines: dict[str, Machine] = field(default_factory=dict)
    error: Json = field(default_factory=lambda: dict(EXHAUSTED))
    settings: Json = field(default_factory=dict)
    log: list[Json] = field(default_factory=list)  # of listErrors

    @property
    def path(self) -> str:
        place = f"zones/{self.zone}" if self.zone else f"regions/{self.region}"
        return f"{place}/instanceGroupManagers/{self.name}"

    @property
    def zones(self) -> list[str]:
        return [self.zone] if self.zone else [f"{self.region}-{letter}" for letter in "abc"]


@dataclass
class Fault:
    """Answers `status` to the next `count` calls that match; 0: does the call, then drops the connection."""

    pattern: str  # of "METHOD path"
    status: int
    count: int = 1
    body: Json | str = ""
    headers: dict[str, str] = field(default_factory=dict)


class FakeGcp:
    """The world behind the server; tests change it and look at it between calls."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.groups: list[Group] = []
        self.loose: list[Machine] = []  # machines of no group
        self.faults: list[Fault] = []
        self.calls: list[str] = []
        self.are_operations_slow = False
        self.operation_error: Json | None = None  # of the next one
        self.page_size = 500
        self._operations: dict[str, Json] = {}
        self._given = 0

    def add_group(self, name: str, *, zone: str = "", region: str = "", **fields: Any) -> Group:
        group = Group(name=name, zone=zone, region=region, **fields)
        self.groups.append(group)
        return group

    def preempt(self, group: Group, name: str) -> None:
        """Stop a machine, as the market does; its group will make it anew when there is stock."""
        with self.lock:
            machine = group.machines[name]
            machine.status, machine.action, machine.errors = "STOPPING", "RECREATING", []

    def abandon(self, group: Group, name: str) -> None:
        """Take a machine out of its group; it runs on."""
        with self.lock:
            self.loose.append(group.machines.pop(name))
            group.target -= 1

    def finish_operations(self) -> None:
        with self.lock:
            for operation in self._operations.values():
                operation["status"] = "DONE"

    def forget_operations(self) -> None:
        with self.lock:
            self._operations.clear()

    def count(self, pattern: str) -> int:
        """Return how many calls matched."""
        return sum(re.search(pattern, call) is not None for call in self.calls)

    def answer(self, method: str, path: str, params: dict[str, str], body: Json) -> tuple[int, Json]:
        """Do one call and return status and document."""
        with self.lock:
            for pattern, act in self._routes():
                found = re.fullmatch(pattern, f"{method} {path}")
                if found is not None:
                    return act(found.groupdict(), params, body)
        return _refused(404, "notFound", f"no {path}")

    def _routes(
        self,
    ) -> Iterator[tuple[str, Callable[[dict[str, str], dict[str, str], Json], tuple[int, Json]]]]:
        group = r"(?P<place>(?:zones|regions)/[^/]+)/instanceGroupManagers/(?P<group>[^/]+)"
        yield f"GET {group}", self._get_group
        yield f"POST {group}/listManagedInstances", self._list_managed
        yield f"GET {group}/listErrors", self._list_errors
        yield f"POST {group}/resize", self._resize
        yield f"POST {group}/deleteInstances", self._delete_instances
        yield r"GET zones/(?P<zone>[^/]+)/instances", self._list_zone
        yield r"DELETE zones/(?P<zone>[^/]+)/instances/(?P<name>[^/]+)", self._delete_loose
        yield r"GET (?P<place>(?:zones|regions)/[^/]+)/operations/(?P<name>[^/]+)", self._get_operation

    def _group(self, found: dict[str, str]) -> Group | None:
        path = f"{found['place']}/instanceGroupManagers/{found['group']}"
        return next((group for group in self.groups if group.path == path), None)

    def _get_group(self, found: dict[str, str], _params: Json, _body: Json) -> tuple[int, Json]:
        group = self._group(found)
        if group is None:
            return _refused(404, "notFound", f"The resource '{found['group']}' was not found")
        answer = {
            "kind": "compute#instanceGroupManager",
            "name": group.name,
            "baseInstanceName": group.name,
            "targetSize": group.target,
            "status": {"isStable": False},
            "updatePolicy": {"type": "OPPORTUNISTIC", "instanceRedistributionType": "NONE"},
        }
        if group.region:
            zones = [{"zone": f"{_API}/{PROJECT}/zones/{zone}"} for zone in group.zones]
            answer["distributionPolicy"] = {"zones": zones, "targetShape": "ANY"}
        return 200, {**answer, **group.settings}

    def _list_managed(self, found: dict[str, str], params: Json, _body: Json) -> tuple[int, Json]:
        group = self._group(found)
        if group is None:
            return _refused(404, "notFound", "no such group")
        if "pageToken" not in params:
            self._go_on(group)
        return 200, self._page("managedInstances", [_managed(m) for m in group.machines.values()], params)

    def _go_on(self, group: Group) -> None:
        """Let every machine take one step, and the group begin what its target asks for."""
        for machine in list(group.machines.values()):
            if machine.action == "DELETING":
                if machine.status in ("", "STOPPING"):
                    del group.machines[machine.name]
                machine.status = "STOPPING"
            elif machine.status == "STOPPING":
                machine.status = "TERMINATED"
            elif machine.action != "NONE":
                self._make(group, machine)
        while sum(m.action != "DELETING" for m in group.machines.values()) < group.target:
            self._given += 1
            zone = group.zones[self._given % len(group.zones)]
            name = f"{group.name}-{self._given:04x}"
            made_by = f"projects/123/{group.path}"
            group.machines[name] = Machine(name=name, zone=zone, number=self._given, created_by=made_by)

    def _make(self, group: Group, machine: Machine) -> None:
        step = _LIFE.index(machine.status) if machine.status in _LIFE else 0
        if step == 0:
            existing = sum(m.status in _LIFE[1:] for m in group.machines.values())
            if existing >= group.stock:
                machine.errors = [group.error]
                return
            self._given += 1
            machine.number = self._given
        machine.status, machine.errors = _LIFE[step + 1], []
        if machine.status == "RUNNING":
            machine.action = "NONE"

    def _list_errors(self, found: dict[str, str], params: Json, _body: Json) -> tuple[int, Json]:
        group = self._group(found)
        return 200, self._page("items", group.log if group else [], params)

    def _resize(self, found: dict[str, str], params: Json, _body: Json) -> tuple[int, Json]:
        group = self._group(found)
        assert group is not None
        wanted = int(params["size"])
        assert wanted >= group.target, "shrinking by number ends machines nobody chose"
        if self.operation_error is None:
            group.target = wanted
        return 200, self._operation(found["place"])

    def _delete_instances(self, found: dict[str, str], _params: Json, body: Json) -> tuple[int, Json]:
        group = self._group(found)
        assert group is not None
        for url in body["instances"]:
            machine = group.machines.get(url.rpartition("/")[2])
            if machine is None or machine.action == "DELETING":
                if not body.get("skipInstancesOnValidationError"):
                    return _refused(400, "invalid", f"{url} is no member")
                continue
            machine.action = "DELETING"
            group.target -= 1
        return 200, self._operation(found["place"])

    def _operation(self, place: str) -> Json:
        self._given += 1
        operation: Json = {"kind": "compute#operation", "name": f"operation-{self._given}", "status": "DONE"}
        if self.are_operations_slow:
            operation["status"] = "RUNNING"
        answer = dict(operation)
        if self.operation_error is not None:
            operation["error"] = {"errors": [self.operation_error]}
            self.operation_error, answer["status"] = None, "RUNNING"
        self._operations[f"{place}/{operation['name']}"] = operation
        return answer

    def _get_operation(self, found: dict[str, str], _params: Json, _body: Json) -> tuple[int, Json]:
        operation = self._operations.get(f"{found['place']}/{found['name']}")
        return (200, operation) if operation else _refused(404, "notFound", "no such operation")

    def _all_machines(self) -> list[Machine]:
        inside = [m for group in self.groups for m in group.machines.values() if m.status]
        return inside + self.loose

    def _list_zone(self, found: dict[str, str], params: Json, _body: Json) -> tuple[int, Json]:
        machines = [_instance(m) for m in self._all_machines() if m.zone == found["zone"]]
        return 200, self._page("items", _filtered(machines, params), params)

    def _delete_loose(self, found: dict[str, str], _params: Json, _body: Json) -> tuple[int, Json]:
        self.loose = [m for m in self.loose if m.name != found["name"]]
        return 200, self._operation(f"zones/{found['zone']}")

    def _page(self, key: str, items: list[Json], params: Json) -> Json:
        start = int(params.get("pageToken", 0))
        end = start + min(self.page_size, int(params.get("maxResults", 500)))
        page: Json = {key: items[start:end]}
        if end < len(items):
            page["nextPageToken"] = str(end)
        return page


def _managed(machine: Machine) -> Json:
    found: Json = {"instance": machine.url, "name": machine.name, "currentAction": machine.action}
    if machine.status:
        found |= {"instanceStatus": machine.status, "id": str(machine.number)}
    if machine.errors:
        found["lastAttempt"] = {"errors": {"errors": machine.errors}}
    return found


def _instance(machine: Machine) -> Json:
    return {
        "name": machine.name,
        "id": str(machine.number),
        "status": machine.status,
        "zone": f"{_API}/{PROJECT}/zones/{machine.zone}",
        "machineType": f"{_API}/{PROJECT}/zones/{machine.zone}/machineTypes/g2-standard-8",
        "creationTimestamp": "2026-11-30T04:00:00.000-08:00",
        "labels": {LABEL[0]: LABEL[1]},
        "scheduling": {"provisioningModel": "SPOT", "preemptible": True},
        "metadata": {"items": [{"key": "created-by", "value": machine.created_by}]},
    }


def _filtered(machines: list[Json], params: Json) -> list[Json]:
    wanted = re.fullmatch(r"labels\.([\w-]+)=(\S+)", params.get("filter", ""))
    if wanted is None:
        return machines
    return [m for m in machines if m["labels"].get(wanted[1]) == wanted[2]]


def _refused(status: int, reason: str, message: str) -> tuple[int, Json]:
    return status, {"error": {"code": status, "message": message, "errors": [{"reason": reason}]}}


@contextmanager
def serving(world: FakeGcp) -> Iterator[str]:
    """Serve the world on loopback and yield its endpoint."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65536  # one packet an answer

        def log_message(self, *_: object) -> None:
            """Stay silent."""

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def do_DELETE(self) -> None:
            self._serve()

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            url = urlsplit(self.path)
            path = url.path.removeprefix(f"/compute/v1/projects/{PROJECT}/")
            call = f"{self.command} {path}"
            world.calls.append(call)
            fault = next((f for f in world.faults if f.count and re.search(f.pattern, call)), None)
            if fault is not None:
                fault.count -= 1
            if fault is not None and fault.status:
                self._write(fault.status, fault.body, fault.headers)
                return
            params = {key: values[0] for key, values in parse_qs(url.query).items()}
            status, answer = world.answer(self.command, path, params, json.loads(body or b"{}"))
            if fault is not None:
                self.close_connection = True  # it was done, but nobody is told
                return
            self._write(status, answer, {})

        def _write(self, status: int, body: Json | str, headers: dict[str, str]) -> None:
            text = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            for key, value in {**headers, "content-type": "application/json"}.items():
                self.send_header(key, value)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
