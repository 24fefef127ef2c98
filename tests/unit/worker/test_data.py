"""Samples by (step, micro-batch): once an epoch, keyed, resumable, whatever the layout is."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from varuna_runtime.spec.batches import num_micro_batches, replica_micro_batches, virtual_replicas
from varuna_runtime.spec.errors import InvalidInput, ModelRefused
from varuna_runtime.spec.layout import BatchShape
from varuna_runtime.worker.data import SampleSource


class Numbers:
    """Sample i is i; remembers what was fetched."""

    def __init__(self, length: int) -> None:
        self._length = length
        self.fetched: list[int] = []

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        self.fetched.append(index)
        return index


class Noisy(Numbers):
    """A transform that draws from all three global generators."""

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        return index, random.random(), np.random.rand(), torch.rand(1).item()


class Counting:
    """A stream of squares whose cursor is where it stands; draws noise too."""

    def __init__(self, length: int = 10**9) -> None:
        self._length = length
        self.opened: list[Any] = []
        self.read = 0

    def open(self, cursor: dict[str, int] | None) -> Iterator[tuple[tuple[int, float], dict[str, int]]]:
        self.opened.append(cursor)
        for number in range(0 if cursor is None else cursor["next"], self._length):
            self.read += 1
            yield (number**2, random.random()), {"next": number + 1}


def source(dataset: Any, **changes: Any) -> SampleSource:
    settings: dict[str, Any] = {
        "collate": list,
        "seed": 1,
        "shuffle": True,
        "batch_size": 6,
        "total_samples": None,
    }
    return SampleSource(dataset, **(settings | changes))


def step_samples(samples: SampleSource, step: int, micro: int) -> list[Any]:
    count = num_micro_batches(samples.num_samples(step), micro)
    return [sample for index in range(count) for sample in samples.micro_batch(step, index, micro)]


def test_each_sample_is_used_once_an_epoch_across_steps_that_span_epochs():
    samples = source(Numbers(10), total_samples=30)
    used = [sample for step in range(5) for sample in step_samples(samples, step, 4)]
    epochs = [used[:10], used[10:20], used[20:]]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert epochs[0] != epochs[1]


@settings(deadline=None, max_examples=60)
@given(
    length=st.integers(1, 40),
    batch=st.integers(1, 12),
    micro=st.integers(1, 12),
    virtual=st.integers(1, 8),
    replicas=st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
def test_every_sample_exactly_once_whatever_the_layouts_are(
    length: int, batch: int, micro: int, virtual: int, replicas: list[int]
):
    """Each step runs at another number of replicas, each with a source of its own, as after a morph."""
    shape = BatchShape(batch_size=batch, micro_batch_size=micro, virtual_replicas=virtual)
    used: Counter[int] = Counter()
    for step in range(-(-2 * length // batch)):
        width = replicas[step % len(replicas)]
        for replica in range(width):
            samples = source(Numbers(length), batch_size=batch, total_samples=2 * length)
            count = num_micro_batches(samples.num_samples(step), micro)
            owned = replica_micro_batches(count, virtual_replicas(shape, count), width, replica)
            for index in (index for indices in owned for index in indices):
                used.update(samples.micro_batch(step, index, micro))
    assert used == Counter(dict.fromkeys(range(length), 2))


def test_only_the_samples_asked_for_are_fetched():
    numbers = Numbers(100)
    batch = source(numbers, batch_size=50).micro_batch(3, 7, 4)
    assert numbers.fetched == batch
    assert len(batch) == 4


def test_the_last_micro_batch_and_the_last_step_may_be_short():
    samples = source(Numbers(10), total_samples=10)
    assert [samples.num_samples(step) for step in range(3)] == [6, 4, 0]
    assert len(samples.micro_batch(0, 1, 4)) == 2
    assert len(samples.micro_batch(1, 0, 4)) == 4


def test_without_shuffling_samples_come_in_order():
    samples = source(Numbers(4), shuffle=False)
    assert step_samples(samples, 0, 4) == [0, 1, 2, 3, 0, 1]


def test_the_order_depends_on_the_seed():
    one, other = (step_samples(source(Numbers(50), seed=seed), 0, 6) for seed in (1, 2))
    assert one != other


def test_transforms_are_keyed_by_sample_and_epoch_not_by_call_order_or_micro_batch():
    samples = source(Noisy(6))
    whole = samples.micro_batch(0, 0, 6)
    in_parts = [*samples.micro_batch(0, 2, 2), *samples.micro_batch(0, 0, 2), *samples.micro_batch(0, 1, 2)]
    assert sorted(whole) == sorted(in_parts)
    next_epoch = samples.micro_batch(1, 0, 6)
    assert {draw[1:] for draw in whole}.isdisjoint(draw[1:] for draw in next_epoch)


def test_a_collate_that_draws_is_keyed_by_step_and_micro_batch():
    def masked(samples: list[int]) -> list[float]:
        return torch.rand(len(samples)).tolist()

    samples = source(Numbers(12), collate=masked)
    again = samples.micro_batch(0, 1, 3)
    assert samples.micro_batch(0, 0, 3) != again
    assert samples.micro_batch(0, 1, 3) == again


def test_the_random_state_of_the_process_is_put_back():
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    source(Noisy(6)).micro_batch(0, 0, 6)
    after = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_the_default_collate_is_torch_s():
    pairs = [(torch.tensor([float(number)]), number) for number in range(3)]
    values, labels = source(pairs, collate=None, shuffle=False).micro_batch(0, 0, 3)
    assert values.shape == (3, 1)
    assert labels.tolist() == [0, 1, 2]


def test_a_map_style_data_set_needs_no_cursor():
    samples = source(Numbers(10))
    samples.commit(4)
    assert samples.cursor() == ""
    samples.restore("")
    with pytest.raises(InvalidInput, match="map-style now"):
        samples.restore('{"position": 3, "cursor": null}')


def numbers_of(batch: list[tuple[int, float]]) -> list[int]:
    return [round(square**0.5) for square, _ in batch]


def test_a_stream_is_read_once_and_in_order():
    stream = Counting()
    samples = source(stream)
    assert numbers_of(step_samples(samples, 0, 4)) == [0, 1, 2, 3, 4, 5]
    samples.commit(0)
    assert numbers_of(step_samples(samples, 1, 4)) == [6, 7, 8, 9, 10, 11]
    assert stream.opened == [None]
    assert stream.read == 12


def test_a_stream_gives_each_rank_the_same_samples_and_draws():
    every = source(Counting())
    whole = [every.micro_batch(0, index, 2) for index in range(3)]
    assert source(Counting()).micro_batch(0, 2, 2) == whole[2]
    assert source(Counting()).micro_batch(0, 1, 2) == whole[1]


def test_a_stream_continues_from_its_cursor():
    first = source(Counting())
    step_samples(first, 0, 4)
    first.commit(0)
    wanted = step_samples(first, 1, 4)
    cursor = first.cursor()
    stream = Counting()
    second = source(stream)
    second.restore(cursor)
    assert step_samples(second, 1, 4) == wanted
    assert stream.opened == [{"next": 6}]


def test_a_step_of_a_stream_that_is_run_again_reads_the_same():
    stream = Counting()
    samples = source(stream)
    step_samples(samples, 0, 2)
    samples.commit(0)
    once = step_samples(samples, 1, 2)
    assert step_samples(samples, 1, 2) == once
    assert stream.opened == [None, {"next": 6}]


def test_a_stream_cursor_covers_samples_that_no_one_here_asked_for():
    stream = Counting()
    samples = source(stream)
    samples.micro_batch(0, 0, 2)
    samples.commit(0)
    samples.micro_batch(1, 0, 2)
    samples.commit(1)
    assert json.loads(samples.cursor()) == {"position": 12, "cursor": {"next": 12}}
    assert stream.opened == [None]


def test_a_rank_that_reads_no_data_never_opens_the_stream():
    stream = Counting()
    samples = source(stream)
    for step in range(3):
        samples.commit(step)
    assert stream.opened == []


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "ended after 0 samples"),
        ([5], "gave int, wanted"),
        ([(5, object())], "is not JSON"),
        ([(5, float)], "is not JSON"),
    ],
)
def test_a_stream_that_breaks_its_contract_is_refused(items: list[Any], message: str):
    class Broken:
        def open(self, cursor: Any) -> Iterator[Any]:
            return iter(items)

    with pytest.raises(InvalidInput, match=message):
        source(Broken()).micro_batch(0, 0, 2)


def test_a_stream_does_not_continue_from_a_map_style_checkpoint():
    with pytest.raises(InvalidInput, match="no stream cursor"):
        source(Counting()).restore("")


def test_a_stream_may_use_numbers_and_lists_as_cursors():
    class Pairs:
        def open(self, cursor: list[int] | None) -> Iterator[Any]:
            first = 0 if cursor is None else cursor[0]
            return ((number, (number + 1, number)) for number in range(first, 100))

    samples = source(Pairs())
    samples.commit(0)
    other = source(Pairs())
    other.restore(samples.cursor())
    assert other.micro_batch(1, 0, 3) == [6, 7, 8]


class OwnGenerator(Numbers):
    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._generator = torch.Generator()

    def __getitem__(self, index: int) -> float:
        return torch.rand(1, generator=self._generator).item()


class Unsteady:
    """A stream that goes on by itself instead of from its cursor."""

    def __init__(self) -> None:
        self._next = 0

    def open(self, cursor: int | None) -> Iterator[tuple[int, int]]:
        while True:
            self._next += 1
            yield self._next, self._next


@pytest.mark.parametrize("dataset", [OwnGenerator(6), Unsteady()])
def test_samples_that_are_others_when_read_again_are_refused(dataset: Any):
    with pytest.raises(
        ModelRefused, match=r"micro-batch 1 of step 0 read twice is not the same \(batch\[0\]\)"
    ):
        source(dataset).proven_micro_batch(0, 1, 3)


@pytest.mark.parametrize("dataset", [Noisy(6), Counting()])
def test_samples_that_are_the_same_when_read_again_are_taken(dataset: Any):
    assert source(dataset).proven_micro_batch(0, 1, 3) == source(dataset).micro_batch(0, 1, 3)
