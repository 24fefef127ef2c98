"""Google Cloud Storage on loopback: its XML interface, for whole objects, ranges and preconditions."""

import hashlib
import json
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from xml.sax.saxutils import escape

_DATE = "Tue, 01 Dec 2026 00:00:00 GMT"


class FakeGcs:
    """A server with every bucket one may name; a context manager."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()

        class Handler(_Handler):
            owner = self

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> "FakeGcs":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def environment(self) -> dict[str, str]:
        """What lets a client find it."""
        key = {
            "gcs_base_url": f"http://127.0.0.1:{self._server.server_port}",
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key)}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FakeGcs

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the tests tell."""

    @property
    def _key(self) -> str:
        return urllib.parse.unquote(self.path.partition("?")[0])

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        with self.owner.lock:
            if self.headers.get("x-goog-if-generation-match") == "0" and self._key in self.owner.objects:
                self._reply(412)
                return
            self.owner.objects[self._key] = data
        self._reply(200, tag=data)

    def do_GET(self) -> None:
        query = urllib.parse.parse_qs(self.path.partition("?")[2])
        if "list-type" in query:
            self._reply(200, self._listed(query.get("prefix", [""])[0]))
            return
        data = self.owner.objects.get(self._key)
        if data is None:
            self._reply(404)
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None:
            self._reply(200, data, tag=data)
            return
        first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
        if first >= len(data):
            self._reply(416)
            return
        span = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        self._reply(206, data[first : last + 1], tag=data, more=span)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        found = self.owner.objects.pop(self._key, None)
        self._reply(404 if found is None else 204)

    def _listed(self, prefix: str) -> bytes:
        start = f"{self._key.rstrip('/')}/"
        found = "".join(
            f"<Contents><Key>{escape(key.removeprefix(start))}</Key><Size>{len(data)}</Size>"
            f"<LastModified>2026-12-01T00:00:00.000Z</LastModified><ETag>{_tag(data)}</ETag></Contents>"
            for key, data in sorted(self.owner.objects.items())
            if key.startswith(start + prefix)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()

    def _reply(
        self, status: int, body: bytes = b"", *, tag: bytes | None = None, more: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (more or {}).items():
            self.send_header(name, value)
        if tag is not None:
            self.send_header("ETag", _tag(tag))
            self.send_header("Last-Modified", _DATE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _tag(data: bytes) -> str:
    return f'"{hashlib.sha256(data).hexdigest()[:32]}"'
