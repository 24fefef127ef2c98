"""Checkpoints that do not depend on the layout; what is re-exported here is torch-free.

`checkpoint.tensors` and `checkpoint.writer` need torch and are imported by name.
"""

from varuna_runtime.checkpoint.exchange import MemoryExchange, RecordExchange, TcpStoreExchange
from varuna_runtime.checkpoint.manifests import (
    Refusal,
    Scan,
    commit,
    complete_steps,
    newest_complete,
    read_manifest,
    scan,
)
from varuna_runtime.checkpoint.retention import prune

__all__ = [
    "MemoryExchange",
    "RecordExchange",
    "Refusal",
    "Scan",
    "TcpStoreExchange",
    "commit",
    "complete_steps",
    "newest_complete",
    "prune",
    "read_manifest",
    "scan",
]
