"""Where the ranks of one generation meet with their records of a save; bytes under keys, torch-free."""

import threading
from typing import Protocol

from varuna_runtime.spec.errors import PeerLost


class RecordExchange(Protocol):
    """A small shared dictionary; no call waits for another rank. PeerLost when it is gone."""

    def put(self, key: str, value: bytes) -> None:
        """Set the value, replacing an older one."""

    def get(self, key: str) -> bytes | None:
        """Return the value, or None while there is none."""

    def delete(self, key: str) -> None:
        """Forget the key if it is there."""


class MemoryExchange:
    """For ranks that are threads of one process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put(self, key: str, value: bytes) -> None:
        """See RecordExchange."""
        with self._lock:
            self._values[key] = value

    def get(self, key: str) -> bytes | None:
        """See RecordExchange."""
        with self._lock:
            return self._values.get(key)

    def delete(self, key: str) -> None:
        """See RecordExchange."""
        with self._lock:
            self._values.pop(key, None)


class KeyValueStore(Protocol):
    """The part of torch.distributed.TCPStore that is used."""

    def set(self, key: str, value: bytes, /) -> object:
        """Set the value."""

    def get(self, key: str, /) -> bytes:
        """Return the value; blocks while there is none."""

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys have a value."""

    def delete_key(self, key: str, /) -> bool:
        """Forget the key."""


class TcpStoreExchange:
    """Over a TCPStore client that nobody else uses, so that no slow call of ours holds up another's."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store

    def put(self, key: str, value: bytes) -> None:
        """See RecordExchange."""
        try:
            self._store.set(key, value)
        except RuntimeError as err:
            raise PeerLost(0, f"its store does not answer: {err}") from err

    def get(self, key: str) -> bytes | None:
        """See RecordExchange."""
        try:
            return self._store.get(key) if self._store.check([key]) else None
        except RuntimeError as err:
            raise PeerLost(0, f"its store does not answer: {err}") from err

    def delete(self, key: str) -> None:
        """See RecordExchange."""
        try:
            self._store.delete_key(key)
        except RuntimeError as err:
            raise PeerLost(0, f"its store does not answer: {err}") from err
