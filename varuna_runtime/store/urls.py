"""From a store URL to a Store; the only place that knows which scheme is which class."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from obstore.store import MemoryStore, from_url

from varuna_runtime.spec.errors import InvalidInput, StoreError
from varuna_runtime.spec.job import STORE_SCHEMES
from varuna_runtime.store.local import FileStore
from varuna_runtime.store.objects import ObjectStore
from varuna_runtime.store.retrying import RetryingStore
from varuna_runtime.store.seam import Store
from varuna_runtime.store.tiered import TieredStore

SCHEMES = (*STORE_SCHEMES, "memory")


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
    if scheme == "memory":
        return RetryingStore(ObjectStore(MemoryStore()))
    if scheme == "file":
        return RetryingStore(FileStore(_file_root(url)))
    try:
        behind = ObjectStore(from_url(url))
        return RetryingStore(behind) if near is None else TieredStore(behind, near)
    except Exception as err:  # an SDK error of any kind: bad configuration, no credentials
        said = str(err).partition("\n")[0]  # what follows is the SDK's own source
        raise StoreError(
            f"cannot open the store {url}: {said}; wanted a URL such as {scheme}://bucket/prefix"
        ) from err


def _file_root(url: str) -> Path:
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or not path.is_absolute() or parts.query or parts.fragment:
        raise InvalidInput(f"store URL: seen {url!r}, wanted an absolute path such as file:///var/lib/varuna")
    return path
