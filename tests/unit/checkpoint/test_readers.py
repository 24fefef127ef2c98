"""A reader while saves go on: it finishes with the step it began, or learns why and finds a newer one."""

from collections.abc import Callable, Sequence

import pytest
from obstore.store import MemoryStore

from tests.support.checkpoints import Ranks, equal, model_record, saved, state
from varuna_runtime.checkpoint import newest_complete, read_manifest, scan
from varuna_runtime.checkpoint.tensors import load_segments
from varuna_runtime.spec.errors import CheckpointRefused
from varuna_runtime.spec.layout import Layout
from varuna_runtime.store import Store
from varuna_runtime.store.objects import ObjectStore

MODEL = model_record()


class WatchedStore(ObjectStore):
    """Calls `meanwhile` after so many of the reader's calls."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.calls_left = -1
        self.meanwhile: Callable[[], object] = lambda: None

    def sizes(self, prefix: str) -> dict[str, int]:
        """Count."""
        found = super().sizes(prefix)
        self._count()
        return found

    def get(self, key: str) -> bytes:
        """Count."""
        found = super().get(key)
        self._count()
        return found

    def read_into(self, key: str, start: int, into: Sequence[memoryview]) -> int:
        """Count."""
        found = super().read_into(key, start, into)
        self._count()
        return found

    def _count(self) -> None:
        self.calls_left -= 1
        if self.calls_left == 0:
            self.meanwhile()


def save_on(inner: MemoryStore, *steps: int) -> None:
    """Save as rank 0 of a running job that keeps one step."""
    ranks = Ranks(ObjectStore(inner), layout=Layout(stages=1, replicas=1), model=MODEL, keep=1)
    for step in steps:
        assert ranks.save(step, state(MODEL, step))
    ranks.close()


def watched(calls: int, *steps: int) -> Store:
    """A store with step 10, in which the steps are saved after so many calls of its reader."""
    inner = MemoryStore()
    saved(ObjectStore(inner), 10)
    store = WatchedStore(inner)
    store.calls_left, store.meanwhile = calls, lambda: save_on(inner, *steps)
    return store


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("calls", range(1, 6))
def test_a_step_that_is_deleted_while_it_is_looked_at_leads_to_the_newest(calls: int, verify: bool) -> None:
    found = scan(watched(calls, 20, 30), "job", verify=verify, model=MODEL)
    assert found.manifest is not None
    assert found.manifest.step in (10, 30)
    assert found.refusals == ()


@pytest.mark.parametrize("calls", range(1, 4))
def test_a_load_whose_step_is_deleted_finishes_or_says_why_and_the_newest_loads(calls: int) -> None:
    store = watched(calls, 20, 30)
    manifest = read_manifest(store, "job", 10)
    try:
        loaded = load_segments(store, manifest, [0, 1], "cpu")
    except CheckpointRefused as err:
        reason = str(err)
    else:
        assert equal(loaded, state(MODEL, 10))
        return
    assert "000000000010" in reason
    assert "missing" in reason
    newest = newest_complete(store, "job", verify=True, model=MODEL)
    assert newest is not None
    assert newest.step == 30
    assert equal(load_segments(store, newest, [0, 1], "cpu"), state(MODEL, 30))


def test_a_load_of_one_of_the_newest_kept_steps_finishes_though_saves_go_on() -> None:
    inner = MemoryStore()
    saved(ObjectStore(inner), 10)
    store = WatchedStore(inner)
    manifest = read_manifest(store, "job", 10)

    def two_more() -> None:
        ranks = Ranks(ObjectStore(inner), layout=Layout(stages=1, replicas=1), model=MODEL, keep=3)
        assert ranks.save(20, state(MODEL, 20))
        assert ranks.save(30, state(MODEL, 30))
        ranks.close()

    store.calls_left, store.meanwhile = 1, two_more
    assert equal(load_segments(store, manifest, [0, 1], "cpu"), state(MODEL, 10))
