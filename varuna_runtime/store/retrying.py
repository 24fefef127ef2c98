"""The one place that retries a store: bounded, with back-off and jitter, only what another try can mend."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import stamina

from varuna_runtime.spec.errors import ObjectExists, ObjectMissing, StoreError, StoreRefused
from varuna_runtime.store.seam import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to insist; a failure that outlives it reaches the caller."""

    attempts: int = 5
    timeout_s: float = 30.0
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0


def _is_transient(err: Exception) -> bool:
    return isinstance(err, StoreError) and not isinstance(err, ObjectExists | ObjectMissing | StoreRefused)


class RetryingStore:
    """A Store that repeats the calls of another one."""

    def __init__(self, inner: Store, policy: RetryPolicy | None = None) -> None:
        self._inner = inner
        self._policy = policy or RetryPolicy()

    @property
    def range_bytes(self) -> int:
        """See Store."""
        return self._inner.range_bytes

    @property
    def num_readers(self) -> int:
        """See Store."""
        return self._inner.num_readers

    def put(self, key: str, data: bytes | memoryview) -> None:
        """See Store."""
        self._retried(lambda _: self._inner.put(key, data))

    def put_if_absent(self, key: str, data: bytes) -> None:
        """See Store; an own earlier try whose answer got lost counts as success."""

        def attempt(number: int) -> None:
            try:
                self._inner.put_if_absent(key, data)
            except ObjectExists:
                if number == 1 or self._inner.get(key) != data:
                    raise

        self._retried(attempt)

    def put_file(self, key: str, path: Path) -> None:
        """See Store."""
        self._retried(lambda _: self._inner.put_file(key, path))

    def get(self, key: str) -> bytes:
        """See Store."""
        return self._retried(lambda _: self._inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See Store."""
        return self._retried(lambda _: self._inner.get_range(key, start, length))

    def read_into(self, key: str, start: int, into: Sequence[memoryview]) -> int:
        """See Store; called for every megabyte, so a try that works costs nothing more."""
        try:
            return self._inner.read_into(key, start, into)
        except StoreError as err:
            if not _is_transient(err):
                raise
        return self._retried(lambda _: self._inner.read_into(key, start, into))

    def distrust(self, key: str) -> bool:
        """See Store."""
        return self._inner.distrust(key)

    def get_file(self, key: str, path: Path) -> None:
        """See Store."""
        self._retried(lambda _: self._inner.get_file(key, path))

    def size(self, key: str) -> int:
        """See Store."""
        return self._retried(lambda _: self._inner.size(key))

    def exists(self, key: str) -> bool:
        """See Store."""
        return self._retried(lambda _: self._inner.exists(key))

    def list(self, prefix: str) -> tuple[str, ...]:
        """See Store."""
        return self._retried(lambda _: self._inner.list(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        """See Store."""
        return self._retried(lambda _: self._inner.sizes(prefix))

    def written_at(self, prefix: str) -> dict[str, float]:
        """See Store."""
        return self._retried(lambda _: self._inner.written_at(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        """See Store."""
        ordered = tuple(keys)
        self._retried(lambda _: self._inner.delete(ordered))

    def sweep(self, folder: str, *, before: str) -> None:
        """See Store."""
        self._retried(lambda _: self._inner.sweep(folder, before=before))

    def _retried(self, call: Callable[[int], T]) -> T:
        policy = self._policy
        for attempt in stamina.retry_context(
            on=_is_transient,
            attempts=policy.attempts,
            timeout=policy.timeout_s,
            wait_initial=policy.first_wait_s,
            wait_max=policy.longest_wait_s,
            wait_jitter=policy.first_wait_s,
        ):
            with attempt:
                return call(attempt.num)
        raise AssertionError("a retry context ends by returning or raising")
