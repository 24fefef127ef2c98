"""Saves in the background: what the ranks agree on when one is slow, stalled, failing or gone."""

import threading

import pytest
import torch
from obstore.store import MemoryStore

from tests.support.checkpoints import (
    GatedStore,
    Ranks,
    equal,
    model_record,
    saved,
    stage_segments,
    state,
    trainer_state,
)
from varuna_runtime.checkpoint import MemoryExchange, complete_steps, newest_complete
from varuna_runtime.checkpoint.tensors import load_segments
from varuna_runtime.checkpoint.writer import Durable, Patience, SaveFailed
from varuna_runtime.spec.errors import PeerLost, StoreError
from varuna_runtime.spec.layout import Layout
from varuna_runtime.spec.manifest import checkpoint_prefix
from varuna_runtime.store import Store, open_store
from varuna_runtime.store.objects import ObjectStore

MODEL = model_record()
PAIR = Layout(stages=1, replicas=2)
QUICK = Patience(begin_s=0.0, collect_s=0.0, poll_s=0.001)


@pytest.fixture
def store() -> Store:
    return open_store("memory://")


class FailingStore(ObjectStore):
    """Refuses puts while `is_failing`."""

    is_failing = True

    def put(self, key: str, data: bytes | memoryview) -> None:
        if self.is_failing:
            raise StoreError("no space left")
        super().put(key, data)


def loaded(store: Store) -> dict[int, dict[str, torch.Tensor]]:
    manifest = newest_complete(store, "job", verify=True, model=MODEL)
    assert manifest is not None
    return load_segments(store, manifest, [0, 1], "cpu")


def test_every_rank_learns_that_a_step_is_durable(store: Store) -> None:
    ranks = Ranks(store, layout=Layout(stages=2, replicas=2), model=MODEL)
    assert ranks.begin(4, state(MODEL, 4)) == [True] * 4
    assert [[type(o) for o in outcomes] for outcomes in ranks.settle()] == [[Durable]] * 4
    assert ranks.settle() == [()] * 4
    ranks.close()


def test_t16_training_changes_the_tensors_while_the_save_runs() -> None:
    inner = MemoryStore()
    gated = GatedStore(inner)
    values, wanted = state(MODEL, 4), state(MODEL, 4)
    ranks = Ranks(gated, layout=PAIR, model=MODEL)
    ranks.begin(4, values)
    assert gated.is_reached.wait(10.0)
    for held in values.values():
        for tensor in held.values():
            tensor.zero_()
    gated.gate.set()
    ranks.settle()
    ranks.close()
    assert equal(loaded(ObjectStore(inner)), wanted)


def test_t11_saving_every_step_to_a_slow_store_never_mixes_steps() -> None:
    inner = MemoryStore()
    gated = GatedStore(inner)
    ranks = Ranks(gated, layout=PAIR, model=MODEL, keep=100, patience=Patience(begin_s=0.0, poll_s=0.001))
    values = state(MODEL, 0)
    begun = []
    for step in range(1, 7):
        for held in values.values():
            for tensor in held.values():
                tensor.fill_(step)
        begun.append(ranks.begin(step, values))
    assert begun == [[True, True], *[[False, False]] * 5]
    gated.gate.set()
    outcomes = ranks.settle()
    ranks.close()
    plain = ObjectStore(inner)
    assert [o.step for o in outcomes[0] if isinstance(o, Durable)] == [1]
    assert {o.step for rank in outcomes for o in rank if isinstance(o, SaveFailed)} == {2, 3, 4, 5, 6}
    assert complete_steps(plain, "job") == (1,)
    assert {float(t) for held in loaded(plain).values() for v in held.values() for t in v.flatten()} == {1.0}


def test_a_busy_rank_makes_the_save_fail_everywhere(store: Store) -> None:
    gated = GatedStore(MemoryStore())
    patience = Patience(begin_s=0.0, collect_s=0.0, poll_s=0.001)
    ranks = Ranks((store, gated), layout=PAIR, model=MODEL, patience=patience)
    ranks.begin(1, state(MODEL, 1))
    assert gated.is_reached.wait(10.0)
    assert ranks.writers[0].flush(10.0)
    assert ranks.begin(2, state(MODEL, 2)) == [True, False]
    assert ranks.writers[0].flush(10.0)
    reasons = [o.reason for o in ranks.writers[0].poll() if isinstance(o, SaveFailed)]
    assert reasons == ["no record of ranks [1] in time", "rank 1 is still writing the previous checkpoint"]
    gated.gate.set()
    ranks.settle()
    ranks.close()


def test_t18_a_stalled_writer_keeps_its_step_from_being_durable(store: Store) -> None:
    wanted = saved(store, 10)
    gated = GatedStore(MemoryStore())
    ranks = Ranks((store, gated), layout=PAIR, model=MODEL, generation=2)
    ranks.begin(20, state(MODEL, 20))
    assert gated.is_reached.wait(10.0)
    assert not ranks.writers[0].flush(0.05)
    ranks.close(timeout_s=0.0)  # as if both were killed here
    gated.gate.set()
    ranks.close()
    assert store.list(checkpoint_prefix("job", 20))
    assert complete_steps(store, "job") == (10,)
    assert equal(loaded(store), wanted)


def test_t10_ranks_that_save_different_steps_commit_none(store: Store) -> None:
    ranks = Ranks(store, layout=PAIR, model=MODEL)
    ranks.begin_on(0, 6, state(MODEL, 6))
    ranks.begin_on(1, 5, state(MODEL, 5))
    outcomes = [outcome for rank in ranks.settle() for outcome in rank]
    ranks.close()
    assert all(isinstance(o, SaveFailed) and "rank 1 wrote step 5" in o.reason for o in outcomes)
    assert complete_steps(store, "job") == ()


def test_t12_state_of_any_class_is_stored_as_bytes_by_name(store: Store) -> None:
    class Mine(torch.nn.Parameter):
        pass

    values = state(MODEL, 1)
    values[0]["param:0.w0"] = Mine(values[0]["param:0.w0"].clone())
    ranks = Ranks(store, layout=PAIR, model=MODEL)
    assert ranks.save(1, values)
    ranks.close()
    assert type(loaded(store)[0]["param:0.w0"]) is torch.Tensor


@pytest.mark.parametrize("failing", [0, 1])
def test_a_store_failure_is_reported_and_the_next_save_succeeds(failing: int) -> None:
    inner = MemoryStore()
    broken = FailingStore(inner)
    stores = [broken if rank == failing else ObjectStore(inner) for rank in range(2)]
    ranks = Ranks(stores, layout=PAIR, model=MODEL)
    ranks.begin(1, state(MODEL, 1))
    for outcomes in ranks.settle():
        assert outcomes == (SaveFailed(step=1, reason=f"rank {failing} failed: no space left"),)
    broken.is_failing = False
    assert ranks.save(2, state(MODEL, 2))
    ranks.close()
    assert complete_steps(ObjectStore(inner), "job") == (2,)


@pytest.mark.parametrize("failing", [0, 1])
def test_failed_saves_do_not_fill_the_store(failing: int) -> None:
    """One rank's share is written each time; only that of the newest failed step may stay."""
    inner = MemoryStore()
    broken = FailingStore(inner)
    stores = [broken if rank == failing else ObjectStore(inner) for rank in range(2)]
    ranks = Ranks(stores, layout=PAIR, model=MODEL)
    for step in (1, 2, 3):
        ranks.begin(step, state(MODEL, step))
        ranks.settle()
    ranks.close()
    left = [step for step in (1, 2, 3) if ObjectStore(inner).list(checkpoint_prefix("job", step))]
    assert left == [3]


def test_an_error_nobody_expected_fails_the_save_and_not_the_thread(store: Store) -> None:
    ranks = Ranks(store, layout=Layout(stages=1, replicas=1), model=MODEL)
    values = state(MODEL, 1)
    values[0]["param:odd"] = torch.zeros(2, dtype=torch.complex128)
    ranks.begin(1, values)
    (outcome,) = ranks.settle()[0]
    assert isinstance(outcome, SaveFailed)
    assert ranks.save(2, state(MODEL, 2))
    ranks.close()


def test_ranks_that_lose_the_exchange_report_it(store: Store) -> None:
    class Gone(MemoryExchange):
        is_gone = False

        def get(self, key: str) -> bytes | None:
            if self.is_gone:
                raise PeerLost(0, "connection closed")
            return super().get(key)

    gone = Gone()
    ranks = Ranks(store, layout=PAIR, model=MODEL, exchange=gone)
    gone.is_gone = True
    ranks.begin_on(1, 1, state(MODEL, 1))
    assert ranks.writers[1].flush(10.0)
    (outcome,) = ranks.writers[1].poll()
    assert isinstance(outcome, SaveFailed)
    assert "rank 0 is gone" in outcome.reason
    ranks.close()


def test_patience_with_a_silent_rank_ends(store: Store) -> None:
    ranks = Ranks(store, layout=PAIR, model=MODEL, patience=QUICK)
    ranks.begin_on(0, 1, state(MODEL, 1))
    assert ranks.writers[0].flush(10.0)
    assert ranks.writers[0].poll() == (SaveFailed(step=1, reason="no record of ranks [1] in time"),)
    ranks.close()


def test_the_same_step_can_be_saved_again(store: Store) -> None:
    ranks = Ranks(store, layout=PAIR, model=MODEL)
    assert ranks.save(1, state(MODEL, 1))
    assert ranks.save(1, state(MODEL, 1))
    ranks.close()
    assert complete_steps(store, "job") == (1,)


def test_the_newest_saves_are_kept(store: Store) -> None:
    ranks = Ranks(store, layout=PAIR, model=MODEL, keep=2)
    assert all(ranks.save(step, state(MODEL, step)) for step in range(1, 6))
    ranks.close()
    assert complete_steps(store, "job") == (4, 5)


def test_busy_tells_when_to_vote_for_a_save() -> None:
    gated = GatedStore(MemoryStore())
    ranks = Ranks(gated, layout=PAIR, model=MODEL)
    assert not ranks.writers[0].busy
    ranks.begin(1, state(MODEL, 1))
    assert ranks.writers[0].busy
    gated.gate.set()
    ranks.settle()
    assert not ranks.writers[0].busy
    ranks.close()


def test_a_stage_without_tensors_takes_part(store: Store) -> None:
    layout = Layout(stages=3, replicas=1)
    ranks = Ranks(store, layout=layout, model=MODEL)
    assert not stage_segments(layout, 0, 2)
    assert ranks.save(1, state(MODEL, 1))
    ranks.close()


def test_close_ends_the_thread(store: Store) -> None:
    ranks = Ranks(store, layout=PAIR, model=MODEL)
    ranks.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("checkpoint-")]


def test_the_trainer_state_comes_back(store: Store) -> None:
    saved(store, 7)
    manifest = newest_complete(store, "job", verify=True)
    assert manifest is not None
    assert manifest.trainer == trainer_state(7)


def test_a_copy_that_fails_is_a_failed_save_and_the_writer_is_free_again(store: Store) -> None:
    ranks = Ranks(store, layout=Layout(stages=1, replicas=1), model=MODEL)
    values = state(MODEL, 1)
    whole = dict(values[0])
    values[0] |= {name: tensor.to("meta") for name, tensor in whole.items()}
    with pytest.raises(NotImplementedError):
        ranks.begin(1, values)
    assert [type(news) for news in ranks.settle()[0]] == [SaveFailed]
    values[0] |= whole
    assert ranks.save(2, values)
    ranks.close()
