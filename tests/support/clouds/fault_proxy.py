"""An HTTP proxy on loopback that breaks the calls to one cloud, by rules; it also counts them.

It stands before any of our doubles, whatever they speak: AWS query (`Action=`), AWS JSON (`X-Amz-Target`) or
plain paths. From another process, the rules are `POST <url>/_faults` (one JSON rule), `DELETE <url>/_faults`,
and the counts `GET <url>/_calls`.
"""

import http.client
import json
import re
import threading
import time
import urllib.parse
from collections import Counter, defaultdict, deque
from dataclasses import asdict, dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

_HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "content-length"}
_KEPT_ANSWERS = 100  # of one request, for `stale_s`


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What happens to the calls of `operation`; the first rule that fits a call is the one applied.

    An operation is the name of an AWS call ("SetDesiredCapacity"), else "METHOD /path"; here it is a regular
    expression for the whole of it. `where` must be found in the query or body, if given.
    """

    operation: str
    where: str = ""
    skip: int = 0  # so many calls pass before
    times: int | None = None  # so many calls are hit; None: all
    delay_s: float = 0.0  # waits before anything else
    status: int | None = None  # answers so itself, and does not forward
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    drops: bool = False  # closes the connection and does not forward
    loses: bool = False  # forwards, then closes the connection without the answer
    stale_s: float | None = None  # answers what it answered to the same request at least so long ago
    rewrites: tuple[tuple[str, str], ...] = ()  # (regular expression, replacement) on the body forwarded

    def fits(self, call: "_Call") -> bool:
        """Return whether this is about `call`."""
        return re.fullmatch(self.operation, call.operation) is not None and (
            not self.where or re.search(self.where, f"{call.query}\n{call.text}") is not None
        )


def aws_error(operation: str, code: str, message: str = "", *, status: int = 400, **more: object) -> Rule:
    """Return a rule that refuses as the query services do; EC2 has another envelope, so both are there."""
    error = f"<Error><Type>Sender</Type><Code>{code}</Code><Message>{message or code}</Message></Error>"
    body = f"<Response><Errors>{error}</Errors>{error}<RequestID>faulty</RequestID></Response>"
    return Rule(operation=operation, status=status, body=body, headers={"Content-Type": "text/xml"}, **more)  # type: ignore[arg-type]


def json_error(operation: str, code: str, message: str = "", *, status: int = 400, **more: object) -> Rule:
    """Return a rule that refuses as Azure and the JSON services of AWS do."""
    body = json.dumps({"error": {"code": code, "message": message or code}, "__type": code})
    headers = {"Content-Type": "application/json"}
    return Rule(operation=operation, status=status, body=body, headers=headers, **more)  # type: ignore[arg-type]


def html_error(operation: str, *, status: int = 500, **more: object) -> Rule:
    """Return a rule that fails as a load balancer does: a page that no SDK can parse."""
    body = "<!doctype html><html><title>Oops</title><body><br>Something broke</body></html>"
    return Rule(operation=operation, status=status, body=body, headers={"Content-Type": "text/html"}, **more)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def text(self) -> str:
        return urllib.parse.unquote_plus(self.body.decode(errors="replace"))

    @property
    def operation(self) -> str:
        target = next((v for k, v in self.headers if k.lower() == "x-amz-target"), "")
        if target:
            return target.rpartition(".")[2]
        form = urllib.parse.parse_qs(self.body.decode(errors="replace")) if self.method == "POST" else {}
        return form["Action"][0] if "Action" in form else f"{self.method} {self.path}"

    @property
    def key(self) -> tuple[str, str, str, bytes]:
        return self.method, self.path, self.query, self.body


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    at_s: float = 0.0


class FaultProxy:
    """Forwards to `upstream` (http://host:port) what no rule breaks; a context manager."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urllib.parse.urlsplit(upstream)
        self._lock = threading.Lock()
        self._rules: list[list[object]] = []  # [rule, calls seen]
        self._calls: Counter[str] = Counter()
        self._answers: defaultdict[tuple[str, str, str, bytes], deque[_Answer]] = defaultdict(
            lambda: deque(maxlen=_KEPT_ANSWERS)
        )
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> "FaultProxy":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Base URL to use in place of the cloud's."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(self, *rules: Rule) -> None:
        """Put rules behind those there are."""
        with self._lock:
            self._rules += [[rule, 0] for rule in rules]

    def clear(self) -> None:
        """Forget rules, counts and remembered answers."""
        with self._lock:
            self._rules.clear()
            self._calls.clear()
            self._answers.clear()

    def heal(self) -> None:
        """Forget the rules alone."""
        with self._lock:
            self._rules.clear()

    def forget_counts(self) -> None:
        """Count from zero."""
        with self._lock:
            self._calls.clear()

    def calls(self) -> Counter[str]:
        """Return how often each operation was called, broken or not."""
        with self._lock:
            return Counter(self._calls)

    def rules(self) -> list[dict[str, object]]:
        """Return the rules there are, and how many calls each one saw."""
        with self._lock:
            return [{**asdict(rule), "seen": seen} for rule, seen in self._rules]  # type: ignore[call-overload]

    def serve(self, call: _Call) -> _Answer | None:
        """Answer one call; None: close the connection."""
        rule = self._rule_for(call)
        if rule is None:
            return self._forward(call)
        time.sleep(rule.delay_s)
        if rule.drops:
            return None
        if rule.status is not None:
            return _Answer(status=rule.status, headers=tuple(rule.headers.items()), body=rule.body.encode())
        if rule.stale_s is not None and (old := self._remembered(call, rule.stale_s)):
            return old
        answer = self._forward(call)
        return None if rule.loses else _rewritten(answer, rule.rewrites)

    def _rule_for(self, call: _Call) -> Rule | None:
        with self._lock:
            self._calls[call.operation] += 1
            for entry in self._rules:
                rule, seen = entry
                assert isinstance(rule, Rule)
                assert isinstance(seen, int)
                if not rule.fits(call):
                    continue
                entry[1] = seen + 1
                if seen >= rule.skip and (rule.times is None or seen < rule.skip + rule.times):
                    return rule
        return None

    def _remembered(self, call: _Call, age_s: float) -> _Answer | None:
        latest_s = time.monotonic() - age_s
        with self._lock:
            return next((a for a in reversed(self._answers[call.key]) if a.at_s <= latest_s), None)

    def _forward(self, call: _Call) -> _Answer:
        connection = http.client.HTTPConnection(
            self._upstream.hostname or "", self._upstream.port, timeout=60
        )
        try:
            target = f"{call.path}?{call.query}" if call.query else call.path
            headers = {k: v for k, v in call.headers if k.lower() not in _HOP_HEADERS}
            connection.request(call.method, target, body=call.body or None, headers=headers)
            response = connection.getresponse()
            told = {"content-length"} if call.method == "HEAD" else set()  # of an object that is not sent
            kept = tuple((k, v) for k, v in response.getheaders() if k.lower() not in _HOP_HEADERS - told)
            answer = _Answer(
                status=response.status, headers=kept, body=response.read(), at_s=time.monotonic()
            )
        finally:
            connection.close()
        with self._lock:
            self._answers[call.key].append(answer)
        return answer


def _rewritten(answer: _Answer, rewrites: tuple[tuple[str, str], ...]) -> _Answer:
    if not rewrites:
        return answer
    text = answer.body.decode()
    for pattern, replacement in rewrites:
        text = re.sub(pattern, replacement, text, flags=re.DOTALL)
    dropped = "x-amz-crc32"  # of the body that was
    headers = tuple((k, v) for k, v in answer.headers if k.lower() != dropped)
    return replace(answer, body=text.encode(), headers=headers)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FaultProxy

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the tests tell."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True  # the client went away first

    def _any(self) -> None:
        path, _, query = self.path.partition("?")
        body = self._body()
        if path in ("/_faults", "/_calls"):
            self._reply(self._control(path, body))
            return
        headers = tuple(self.headers.items())
        answer = self.owner.serve(
            _Call(method=self.command, path=path, query=query, headers=headers, body=body)
        )
        if answer is None:
            self.close_connection = True
        else:
            self._reply(answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _any  # noqa: N815

    def _body(self) -> bytes:
        """Read the body; some SDKs send it in chunks."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _control(self, path: str, body: bytes) -> _Answer:
        if path == "/_faults" and self.command == "POST":
            values = json.loads(body)
            values["rewrites"] = tuple((a, b) for a, b in values.get("rewrites", ()))
            self.owner.add(Rule(**values))
        elif path == "/_faults" and self.command == "DELETE":
            self.owner.clear()
        told = self.owner.calls() if path == "/_calls" else self.owner.rules()
        return _Answer(
            status=200, headers=(("Content-Type", "application/json"),), body=json.dumps(told).encode()
        )

    def _reply(self, answer: _Answer) -> None:
        self.send_response_only(answer.status)
        for key, value in answer.headers:
            self.send_header(key, value)
        if not any(key.lower() == "content-length" for key, _ in answer.headers):
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
