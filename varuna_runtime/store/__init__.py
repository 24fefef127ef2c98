"""Object store seam: whole objects under keys, atomic put, put-if-absent as the commit; torch-free."""

from varuna_runtime.store.seam import Store
from varuna_runtime.store.urls import open_store

__all__ = ["Store", "open_store"]
