"""From a store URL to a Store; the only place that knows which scheme is which class."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote, urlsplit

from obstore.store import MemoryStore, from_url

from varuna_runtime.spec.errors import InvalidInput, StoreError
from varuna_runtime.spec.job import STORE_SCHEMES
from varuna_runtime.store.local import FileStore
from varuna_runtime.store.objects import ObjectStore
from varuna_runtime.store.retrying import RetryingStore
from varuna_runtime.store.seam import Store
from varuna_runtime.store.tiered import TieredStore

if TYPE_CHECKING:
    from obstore.store import ClientConfig

SCHEMES = (*STORE_SCHEMES, "memory")

# A part of 64 MiB takes a minute where ten at a time go over a line of 100 Mbit/s. The SDK's limit is 30 s
# for all of a request, after which it begins anew.
_LONGEST = "300 seconds"
_SILENCE = "30 seconds"  # until an answer begins, and between two pieces of one
_PREFIXES = {"s3": "AWS_", "az": "AZURE_", "gs": "GOOGLE_"}
_FROM_ENVIRONMENT = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "http1_only",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "read_timeout",
    "timeout",
    "user_agent",
)
"""What the SDK reads of a client there, unless it is given any option: then of none."""


def open_store(url: str, near: Path | None = None) -> Store:
    """Return the store at `url`, with transient failures retried a bounded number of times.

    `file:///path` (the folder is made), `s3://bucket/prefix`, `az://container/prefix`, `gs://bucket/prefix`,
    with credentials from the environment as their SDKs read it; `memory://` is a fresh store of this process.
    `near` is a folder of this node for shards of the newest steps; not used with `file://`.
    InvalidInput when the URL cannot be one of these, StoreError when the store cannot be opened.
    """
    scheme = urlsplit(url).scheme
    if scheme not in SCHEMES:
        wanted = ", ".join(f"{name}://" for name in SCHEMES)
        raise InvalidInput(f"store URL: seen {url!r}, wanted one that starts with {wanted}")
    if holds_secret(url):
        raise InvalidInput(
            f"store URL: a {scheme}:// URL has no user, password or query; keys come from the environment"
        )
    if scheme == "memory":
        return RetryingStore(ObjectStore(MemoryStore()))
    if scheme == "file":
        return RetryingStore(FileStore(_file_root(url)))
    try:
        reader = from_url(url, client_options=client_options(scheme, os.environ, is_silent=False))
        uploader = from_url(url, client_options=client_options(scheme, os.environ, is_silent=True))
    except Exception as err:  # an SDK error of any kind: bad configuration, no credentials
        said = str(err).partition("\n")[0]  # what follows is the SDK's own source
        raise StoreError(
            f"cannot open the store {url}: {said}; wanted a URL such as {scheme}://bucket/prefix"
        ) from err
    behind = ObjectStore(reader, uploader)
    return RetryingStore(behind) if near is None else TieredStore(behind, near)


def holds_secret(url: str) -> bool:
    """Return whether a URL has a place for keys: it would be shown, logged and kept with every job."""
    parts = urlsplit(url)
    return parts.scheme != "file" and bool("@" in parts.netloc or parts.query or parts.fragment)


def client_options(scheme: str, environment: Mapping[str, str], *, is_silent: bool) -> "ClientConfig":
    """Return what the SDK gets: a store `is_silent` for as long as something large is sent to it."""
    names = {name: f"{_PREFIXES[scheme]}{name.upper()}" for name in _FROM_ENVIRONMENT}
    given = {name: environment[variable] for name, variable in names.items() if variable in environment}
    own = {"timeout": _LONGEST} | ({} if is_silent else {"read_timeout": _SILENCE})
    default = {"allow_http": "true"} if scheme == "gs" else {}  # the SDK's own
    return cast("ClientConfig", own | default | given)


def _file_root(url: str) -> Path:
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or not path.is_absolute() or parts.query or parts.fragment:
        raise InvalidInput(f"store URL: seen {url!r}, wanted an absolute path such as file:///var/lib/varuna")
    return path
