"""A working directory into a store, without a manager in between."""

from pathlib import Path

from varuna_runtime.store import Store
from varuna_runtime.store.bundle import LIMIT_BYTES, Bundle, keep, packed


def upload(store: Store, workdir: Path, *, limit_bytes: int = LIMIT_BYTES) -> Bundle:
    """Pack `workdir` and keep it in `store`."""
    with packed(workdir, limit_bytes=limit_bytes) as (bundle, archive):
        keep(store, bundle.sha256, archive)
    return bundle
