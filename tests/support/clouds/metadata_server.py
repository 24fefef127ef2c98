"""A fake metadata service of one machine: real sockets, AWS (IMDSv2), Azure and GCP on one port.

It breaks on demand. Tests hold it as an object; other programs post JSON to /ctl/<verb> (see `VERBS`).
"""

import contextlib
import json
import socket
import struct
import threading
import time
from dataclasses import asdict, replace
from email.utils import formatdate
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, urlsplit

from tests.support.clouds.metadata_facts import Facts, Json, Machine, iso


class Break(StrEnum):
    """Ways not to answer; a status (401, 404, 500, ...) is one as well."""

    GARBAGE = "garbage"  # status 200 and bytes that mean nothing
    NO_HTTP = "no-http"
    TRUNCATED = "truncated"
    ENDLESS = "endless"
    RESET = "reset"
    SLOW = "slow"  # byte by byte
    NEVER = "never"


VERBS = (
    "identify", "interrupt", "recommend", "schedule_maintenance", "set_lifecycle", "calm",
    "announce", "start_event", "withdraw", "publish", "take_acknowledged",
    "preempt", "set_maintenance_event", "break_", "mend", "invalidate_tokens",
)  # fmt: skip
"""Methods that /ctl/<verb> calls with the JSON object of its body as keyword arguments."""


class MetadataServer:
    """Starts with nothing announced. `requests` holds (method, path, status), 0 for what was broken off."""

    def __init__(self, machine: Machine | None = None) -> None:
        self.facts = Facts(machine=machine or Machine())
        self.requests: list[tuple[str, str, int]] = []
        self.closing = threading.Event()
        self.enabled = threading.Event()  # while clear, Scheduled Events are being switched on
        self.enabled.set()
        self.asked = threading.Event()  # something was asked, whatever became of it
        self.tells_time = True
        self.breaks: list[tuple[str, str, Break | int]] = []
        self.connections: set[socket.socket] = set()
        self.lock = threading.Lock()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> Self:
        self._server = _Server(self)
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.05,), name="metadata")
        self._thread.start()
        return self

    def stop(self) -> None:
        """Returns when no thread and no socket is left; harmless if it was never started."""
        server, self._server = self._server, None
        if server is None or self._thread is None:
            return
        self.closing.set()
        server.shutdown()
        self._thread.join()
        with self.facts.changed:
            self.facts.changed.notify_all()
        with self.lock:
            for connection in self.connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        server.server_close()

    def count(self, path: str, method: str = "GET") -> int:
        """Return how often a path was asked for."""
        with self.lock:
            return sum(m == method and p.partition("?")[0] == path for m, p, _ in self.requests)

    # --- what tests and /ctl set -----------------------------------------------------------------------

    def identify(self, node: str, **others: object) -> None:
        """Be the machine of that name; others: fields of Machine."""
        self.facts.machine = replace(self.facts.machine, node=node, **others)  # type: ignore[arg-type]

    def interrupt(self, at_s: float, action: str = "terminate") -> None:
        """AWS: announce a spot interruption at this Unix time."""
        self.facts.spot = {"action": action, "time": iso(at_s + self.facts.clock_offset_s)}

    def recommend(self) -> None:
        """AWS: recommend to rebalance."""
        self.facts.rebalance = {"noticeTime": iso(self.facts.now_s())}

    def schedule_maintenance(self, code: str, in_s: float, state: str = "active") -> None:
        """AWS: schedule an event, or change the one of that code."""
        when = formatdate(self.facts.now_s() + in_s, usegmt=True).partition(", ")[2]
        others = [event for event in self.facts.maintenance if event["Code"] != code]
        event: Json = {"Code": code, "EventId": f"event-{code}", "NotBefore": when, "State": state}
        self.facts.maintenance = [*others, event]

    def set_lifecycle(self, state: str | None) -> None:
        """AWS: what the Auto Scaling group wants of the instance."""
        self.facts.lifecycle = state

    def calm(self) -> None:
        """AWS: take everything back."""
        self.facts.spot = self.facts.rebalance = None
        self.facts.maintenance, self.facts.lifecycle = [], "InService"

    def announce(
        self, kind: str, in_s: float = 0.0, resources: list[str] | None = None, status: str = "Scheduled"
    ) -> str:
        """Azure: announce an event, for this machine if no other is named; returns its id."""
        event = self.facts.new_event(kind, in_s, resources or [self.facts.machine.node], status)
        self.facts.new_document([*self.facts.events(), event])
        return str(event["EventId"])

    def start_event(self, event_id: str) -> None:
        """Azure: the event begins."""
        started: Json = {"EventStatus": "Started", "NotBefore": ""}
        self.facts.new_document([e | started if e["EventId"] == event_id else e for e in self.facts.events()])

    def withdraw(self, event_id: str) -> None:
        """Azure: the event is no longer listed."""
        self.facts.new_document([e for e in self.facts.events() if e["EventId"] != event_id])

    def publish(self, document: Json) -> None:
        """Azure: say exactly this document of Scheduled Events."""
        self.facts.document = document

    def take_acknowledged(self) -> list[str]:
        """Azure: return the ids of events that were acknowledged since the last call."""
        with self.lock:
            taken, self.facts.acknowledged = self.facts.acknowledged, []
        return taken

    def preempt(self, is_preempted: bool = True) -> None:
        """GCP: preempt the machine."""
        self._set_gcp("preempted", "TRUE" if is_preempted else "FALSE")

    def set_maintenance_event(self, event: str) -> None:
        """GCP: NONE, MIGRATE_ON_HOST_MAINTENANCE or TERMINATE_ON_HOST_MAINTENANCE."""
        self._set_gcp("maintenance-event", event)

    def break_(self, how: str | int, path: str = "/", method: str = "") -> None:
        """Answer everything below `path` (of one method, or of all) in that way from now on."""
        self.breaks.append((method, path, how if isinstance(how, int) else Break(how)))

    def mend(self) -> None:
        """Answer rightly again."""
        self.breaks = []

    def invalidate_tokens(self) -> None:
        """AWS: refuse every token there is."""
        self.facts.tokens.clear()

    def _set_gcp(self, path: str, value: str) -> None:
        with self.facts.changed:
            self.facts.gcp[path] = value
            self.facts.gcp_version += 1
            self.facts.changed.notify_all()


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for them

    def __init__(self, owner: MetadataServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.owner = owner

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may break off as they like."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.owner = self.server.owner
        with self.owner.lock:
            self.owner.connections.add(self.connection)
            if self.owner.closing.is_set():
                self.connection.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        with self.owner.lock:
            self.owner.connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(self.owner.facts.now_s(), usegmt=True)

    def do_GET(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        self.owner.asked.set()
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        url = urlsplit(self.path)
        self.query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path.startswith("/ctl/"):
            self._control(url.path.removeprefix("/ctl/"))
            return
        for method, prefix, how in self.owner.breaks:
            if url.path.startswith(prefix) and method in ("", self.command):
                self._break(how)
                return
        if url.path.startswith("/latest/"):
            self._aws(url.path.removeprefix("/latest/"))
        elif url.path.startswith("/metadata/"):
            self._azure(url.path.removeprefix("/metadata/"))
        elif url.path.startswith("/computeMetadata/v1/instance/"):
            self._gcp(url.path.removeprefix("/computeMetadata/v1/instance/"))
        else:
            self._say(404, "no such path")

    # --- the three clouds ------------------------------------------------------------------------------

    def _aws(self, path: str) -> None:
        facts = self.owner.facts
        if path == "api/token":
            asked = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if self.command != "PUT" or not asked.isdigit() or not 1 <= int(asked) <= 21600:
                self._say(400, "bad request")
                return
            token, ttl_s = facts.new_token(float(asked))
            self._say(200, token, {"X-aws-ec2-metadata-token-ttl-seconds": str(ttl_s)})
        elif not facts.is_valid(self.headers.get("X-aws-ec2-metadata-token", "")):
            self._say(401, "unauthorized")
        else:
            text = facts.aws(path)
            self._say(404, "not found") if text is None else self._say(200, text)

    def _azure(self, path: str) -> None:
        facts = self.owner.facts
        if self.headers.get("Metadata") != "true" or "api-version" not in self.query:
            self._say(400, "bad request")
        elif path == "identity/oauth2/token":
            self._token(
                {"resource": self.query.get("resource", ""), "expires_on": str(int(time.time()) + 86400)}
            )
        elif path == "scheduledevents" and self.command == "POST":
            self._acknowledge()
        else:
            while path == "scheduledevents" and not self.owner.enabled.wait(0.05):
                if self.owner.closing.is_set():
                    return
            document = facts.azure(path)
            self._say(404, "not found") if document is None else self._say(200, json.dumps(document))

    def _acknowledge(self) -> None:
        match _parsed(self.body):
            case {"StartRequests": [{"EventId": str(event_id)}]}:
                with self.owner.lock:
                    self.owner.facts.acknowledged.append(event_id)
                self._say(200, "")
            case _:
                self._say(400, "bad request")

    def _gcp(self, path: str) -> None:
        facts = self.owner.facts
        if self.headers.get("Metadata-Flavor") != "Google":
            self._say(403, "missing header")
        elif path == "service-accounts/default/token":
            self._token({})
        elif path == "" and self.query.get("recursive") == "true":
            self._say(200, json.dumps(facts.gcp_instance()), {"Metadata-Flavor": "Google"})
        elif path in facts.gcp:
            self._wait_for_change()
            etag = f"{facts.gcp_version:016x}"
            self._say(200, facts.gcp[path], {"Metadata-Flavor": "Google", "ETag": etag})
        else:
            self._say(404, "not found")

    def _wait_for_change(self) -> None:
        if self.query.get("wait_for_change") != "true":
            return
        facts, seen = self.owner.facts, self.query.get("last_etag", "")
        with facts.changed:
            facts.changed.wait_for(
                lambda: self.owner.closing.is_set() or f"{facts.gcp_version:016x}" != seen,
                float(self.query.get("timeout_sec", "600")),
            )

    def _token(self, more: Json) -> None:
        body: Json = {"access_token": "test-only", "token_type": "Bearer", "expires_in": "86400"}
        self._say(200, json.dumps(body | more), {"Metadata-Flavor": "Google"})

    # --- control and breakage --------------------------------------------------------------------------

    def _control(self, verb: str) -> None:
        if verb == "state" and self.command == "GET":
            state = {"requests": self.owner.requests, "machine": asdict(self.owner.facts.machine)}
            self._say(200, json.dumps(state | {"acknowledged": self.owner.facts.acknowledged}))
            return
        arguments = _parsed(self.body or b"{}")
        if verb not in VERBS or self.command != "POST" or not isinstance(arguments, dict):
            self._say(400, f"wanted GET state, or POST of one of {', '.join(VERBS)} with a JSON object")
            return
        self._say(200, json.dumps(getattr(self.owner, verb)(**arguments)))

    def _break(self, how: Break | int) -> None:
        if isinstance(how, int):
            self._say(how, "broken on purpose")
            return
        if how is Break.GARBAGE:
            self._say(200, '\x00{"action": [}\xff garbage')
            return
        self._note(0)
        self.close_connection = True
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
        match how:
            case Break.NO_HTTP:
                self.wfile.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
            case Break.TRUNCATED:
                self.wfile.write(head + b'{"action": "term')
            case Break.RESET:
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.connection.close()
            case Break.ENDLESS:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                while not self.owner.closing.is_set():
                    self.wfile.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            case Break.SLOW:
                self.wfile.write(head)
                while not self.owner.closing.wait(0.1):
                    self.wfile.write(b"x")
            case Break.NEVER:
                self.owner.closing.wait()

    def _say(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        self._note(status)
        body = text.encode("latin-1", "replace")
        self.send_response_only(status)
        if self.owner.tells_time:
            self.send_header("Date", self.date_time_string())
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _note(self, status: int) -> None:
        with self.owner.lock:
            self.owner.requests.append((self.command, self.path, status))


def _parsed(body: bytes) -> object:
    try:
        return json.loads(body)
    except ValueError:
        return None
