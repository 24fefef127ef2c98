"""The sockets of the fake Azure: requests come in as records and leave as records, over TLS or plain."""

import contextlib
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from tests.support.clouds.azure_world import Refused

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request; names of headers are lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response; `body` None: no content."""

    status: int = 200
    body: Json | list[Json] | None = None
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, kw_only=True)
class Fault:
    """What goes wrong with the next `times` requests whose `METHOD /path?query` has a match of `match`."""

    match: str
    times: int = 1
    status: int = 0  # 0: answer as usual
    code: str = "InternalServerError"
    message: str = "a fault of the test"
    retry_after_s: float | None = None
    delay_s: float = 0.0
    is_lost: bool = False  # do it, then break the connection without an answer
    gate: threading.Event | None = None  # do nothing until it is set


@dataclass(slots=True)
class Faults:
    """The faults that wait for their request, and every request that came; safe from any thread."""

    waiting: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, fault: Fault) -> None:
        with self.lock:
            self.waiting.append(fault)

    def clear(self) -> None:
        with self.lock:
            self.waiting.clear()

    def take(self, request: str) -> Fault | None:
        """Note a request and use up the fault that it meets, if any."""
        with self.lock:
            self.requests.append(request.partition("?")[0])
            for fault in self.waiting:
                if fault.times > 0 and re.search(fault.match, request):
                    fault.times -= 1
                    return fault
        return None


class Server(ThreadingHTTPServer):
    """Answers with `respond` on a free port of the loopback interface; `stop` ends every connection."""

    daemon_threads = True

    def __init__(
        self, respond: Callable[[Request], Answer], faults: Faults, tls: ssl.SSLContext | None = None
    ) -> None:
        self.respond = respond
        self.faults = faults
        self._tls = tls
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.01}, name="fake azure", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def finish_request(self, request: object, client_address: object) -> None:
        """Run one connection; the handshake has its own thread, so that a slow peer holds up nobody."""
        assert isinstance(request, socket.socket)
        if self._tls is None:
            self._handle(request, client_address)
            return
        request.settimeout(10.0)
        with contextlib.suppress(OSError), self._tls.wrap_socket(request, server_side=True) as secured:
            secured.settimeout(None)
            self._handle(secured, client_address)

    def _handle(self, connection: socket.socket, client_address: object) -> None:
        self._open.add(connection)
        try:
            self.RequestHandlerClass(connection, client_address, self)
        except OSError:
            pass  # the peer went away, which is its right
        finally:
            self._open.discard(connection)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one segment, or each answer waits for an acknowledgement
    disable_nagle_algorithm = True
    server: Server

    def _serve(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        fault = self.server.faults.take(f"{self.command} {self.path}")
        if fault is not None and fault.delay_s:
            time.sleep(fault.delay_s)
        if fault is not None and fault.gate is not None:
            fault.gate.wait(60.0)
        try:
            if fault is not None and fault.status:
                raise Refused(fault.status, fault.code, fault.message, retry_after_s=fault.retry_after_s)
            answer = self.server.respond(
                Request(
                    method=self.command,
                    path=parts.path,
                    query=dict(parse_qsl(parts.query)),
                    headers={k.lower(): v for k, v in self.headers.items()},
                    body=json.loads(text) if text else {},
                )
            )
        except Refused as err:
            retry = (("Retry-After", f"{err.retry_after_s:g}"),) if err.retry_after_s is not None else ()
            error: Json = {"error": {"code": err.code, "message": err.message}}
            answer = Answer(status=err.status, body=error, headers=retry)
        if fault is not None and fault.is_lost:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._send(answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def _send(self, answer: Answer) -> None:
        text = b"" if answer.body is None else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        if answer.status != 204:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        pass
