"""RetryingStore repeats what may mend, and only that."""

from dataclasses import dataclass, field

import pytest
from obstore.store import MemoryStore

from varuna_runtime.spec.errors import ObjectExists, ObjectMissing, StoreError, StoreRefused
from varuna_runtime.store.objects import ObjectStore
from varuna_runtime.store.retrying import RetryingStore, RetryPolicy


@dataclass
class Flaky(ObjectStore):
    """Fails the first `failures` puts, either before or after the object was written."""

    failures: int
    is_written_first: bool = False
    error: type[StoreError] = StoreError
    num_calls: int = field(default=0)

    def __post_init__(self) -> None:
        super().__init__(MemoryStore())

    def put_if_absent(self, key: str, data: bytes) -> None:
        self.num_calls += 1
        if self.num_calls > self.failures:
            return super().put_if_absent(key, data)
        if self.is_written_first:
            super().put_if_absent(key, data)
        raise self.error("connection reset")


def retrying(inner: Flaky) -> RetryingStore:
    return RetryingStore(inner, RetryPolicy(attempts=3, first_wait_s=0.0, longest_wait_s=0.0))


def test_a_transient_failure_is_retried() -> None:
    flaky = Flaky(failures=2)
    retrying(flaky).put_if_absent("k", b"v")
    assert flaky.get("k") == b"v"


def test_the_number_of_attempts_is_bounded() -> None:
    flaky = Flaky(failures=99)
    with pytest.raises(StoreError, match="connection reset"):
        retrying(flaky).put_if_absent("k", b"v")
    assert flaky.num_calls == 3


@pytest.mark.parametrize("error", [StoreRefused, ObjectMissing])
def test_a_lasting_failure_is_not_retried(error: type[StoreError]) -> None:
    flaky = Flaky(failures=99, error=error)
    with pytest.raises(error):
        retrying(flaky).put_if_absent("k", b"v")
    assert flaky.num_calls == 1


def test_a_lost_answer_of_put_if_absent_is_a_success() -> None:
    flaky = Flaky(failures=1, is_written_first=True)
    retrying(flaky).put_if_absent("k", b"v")
    assert flaky.num_calls == 2


def test_another_writers_object_is_never_taken_for_the_own_one() -> None:
    flaky = Flaky(failures=1)
    flaky.put("k", b"other")
    with pytest.raises(ObjectExists):
        retrying(flaky).put_if_absent("k", b"v")
