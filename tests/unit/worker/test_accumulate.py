import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from varuna_runtime.spec.batches import replica_micro_batches
from varuna_runtime.spec.reduction import Node, combine, share
from varuna_runtime.worker.accumulate import (
    BLOCK,
    BUCKET,
    STRIP,
    Accumulator,
    Space,
    Unit,
    dealt_ranges,
    spaces_of,
)

CPU = torch.device("cpu")


def space_of(*sizes: int) -> Space:
    (space,) = spaces_of(0, [(f"p{i}", torch.empty(size)) for i, size in enumerate(sizes)])
    return space


def space_of_shapes(sizes: list[int]) -> Space:
    return Space(
        segment=0,
        dtype=torch.float32,
        names=tuple(str(i) for i in range(len(sizes))),
        shapes=tuple(torch.Size([size]) for size in sizes),
        positions=tuple(range(len(sizes))),
    )


def accumulated(gradients: list[Tensor], virtual: int, replicas: int) -> Tensor:
    parts: dict[Node, Tensor] = {}
    for replica in range(replicas):
        accumulator = Accumulator(space_of(3), CPU)
        owned = share(virtual, replicas, replica)
        accumulator.start(virtual, owned)
        spans = replica_micro_batches(len(gradients), virtual, replicas, replica)
        for v, span in zip(owned, spans, strict=True):
            for index in span:
                accumulator.add([gradients[index]], is_last=index == span[-1])
            accumulator.finish_leaf(v)
        parts |= accumulator.nodes()
    return combine(Node(0, virtual), parts, torch.add)


@settings(deadline=None)
@given(st.integers(1, 20), st.data())
def test_the_sum_has_the_same_bits_for_any_number_of_replicas(num_micro: int, data: st.DataObject) -> None:
    virtual = data.draw(st.integers(1, num_micro))
    generator = torch.Generator().manual_seed(num_micro)
    gradients = [torch.randn(3, generator=generator) for _ in range(num_micro)]
    whole = accumulated(gradients, virtual, 1)
    for replicas in range(2, virtual + 1):
        assert accumulated(gradients, virtual, replicas).equal(whole)


@pytest.mark.parametrize("is_alone", [False, True])
@pytest.mark.parametrize(("virtual", "limit"), [(1, 1), (2, 2), (8, 4), (16, 5), (13, 5)])
def test_buffers_stay_within_the_depth_of_the_tree(virtual: int, limit: int, is_alone: bool) -> None:
    accumulator = Accumulator(space_of(3), CPU)
    for _ in range(2):
        accumulator.start(virtual, range(virtual))
        for v in range(virtual):
            accumulator.add([torch.ones(3)], is_last=is_alone)
            accumulator.finish_leaf(v)
    assert accumulator.num_buffers <= limit - (is_alone and virtual > 1), "one is what autograd gave"


def test_a_parameter_without_any_gradient_stays_untouched() -> None:
    accumulator = Accumulator(space_of(1, 1), CPU)
    accumulator.start(1, range(1))
    for _ in range(2):
        accumulator.add([torch.ones(1), None])
    accumulator.finish_leaf(0)
    assert accumulator.touched.tolist() == [True, False]
    assert accumulator.result().tolist() == [2.0, 0.0]


def test_a_gradient_that_is_shared_by_two_parameters_is_not_added_to_itself() -> None:
    accumulator = Accumulator(space_of(1, 1), CPU)
    accumulator.start(1, range(1))
    for _ in range(3):
        shared = torch.ones(1)
        accumulator.add([shared, shared])
    accumulator.finish_leaf(0)
    assert accumulator.result().tolist() == [3.0, 3.0]


def test_parameters_of_different_types_live_in_different_spaces() -> None:
    named = [("a", torch.empty(2)), ("b", torch.empty(2, dtype=torch.float64)), ("c", torch.empty(3))]
    spaces = spaces_of(0, named)
    assert [space.names for space in spaces] == [("a", "c"), ("b",)]
    assert [space.positions for space in spaces] == [(0, 2), (1,)]


def test_a_block_never_spans_parameters() -> None:
    space = space_of(BLOCK + 5, 7)
    assert space.blocks() == (range(BLOCK), range(BLOCK, BLOCK + 5), range(BLOCK + 5, BLOCK + 12))


@settings(deadline=None)
@given(st.lists(st.integers(0, 3 * BLOCK), min_size=1, max_size=5), st.integers(1, 6))
def test_owners_share_whole_blocks_and_leave_none_out(sizes: list[int], replicas: int) -> None:
    space = space_of_shapes(sizes)
    ranges = space.owner_ranges(replicas, Unit.BLOCK)
    edges = {0, *(block.stop for block in space.blocks())}
    assert next(r.start for r in ranges) == 0
    assert [r.stop for r in ranges] == [*(r.start for r in ranges[1:]), sum(sizes)]
    assert all(r.start in edges and r.stop in edges for r in ranges)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3 * BLOCK), min_size=1, max_size=5), st.integers(1, 6))
def test_owners_of_sums_alone_have_equal_shares(sizes: list[int], replicas: int) -> None:
    space = space_of_shapes(sizes)
    ranges = space.owner_ranges(replicas)
    assert next(r.start for r in ranges) == 0
    assert [r.stop for r in ranges] == [*(r.start for r in ranges[1:]), sum(sizes)]
    assert all(abs(r.stop - r.start - sum(sizes) / replicas) <= STRIP for r in ranges)


@given(st.lists(st.integers(0, 6 * BLOCK), min_size=1, max_size=4), st.integers(1, 4), st.sampled_from(Unit))
def test_buckets_hold_all_of_a_share_in_order(sizes: list[int], replicas: int, unit: Unit) -> None:
    space = space_of_shapes(sizes)
    for part in space.owner_ranges(replicas, unit):
        buckets = space.buckets(part)
        assert [b.start for b in buckets] == [part.start, *(b.stop for b in buckets[:-1])][: len(buckets)]
        assert (buckets[-1].stop if buckets else part.start) == part.stop
        assert all(0 < b.stop - b.start <= BUCKET for b in buckets)


@settings(deadline=None)
@given(st.lists(st.integers(1, 3 * BLOCK), min_size=1, max_size=4), st.integers(1, 4))
def test_whole_parameters_stay_whole_where_an_optimizer_needs_them(sizes: list[int], replicas: int) -> None:
    space = space_of_shapes(sizes)
    for part in space.owner_ranges(replicas, Unit.PARAMETER):
        assert all(piece.stop - piece.start == sizes[piece.index] for piece in space.pieces(part))


@settings(deadline=None)
@given(st.lists(st.integers(1, 3 * BLOCK), min_size=1, max_size=12), st.integers(1, 5))
def test_a_stage_is_dealt_evenly_even_where_each_space_has_too_few_blocks(
    sizes: list[int], replicas: int
) -> None:
    spaces = [space_of_shapes([size]) for size in sizes]
    dealt = dealt_ranges(spaces, replicas, Unit.BLOCK)
    for space, ranges in zip(spaces, dealt, strict=True):
        owned = space.owner_ranges(replicas, Unit.BLOCK)
        assert sorted(r.start for r in ranges) == sorted(r.start for r in owned)
    loads = [sum(ranges[d].stop - ranges[d].start for ranges in dealt) for d in range(replicas)]
    assert max(loads) - min(loads) <= 3 * BLOCK


@pytest.mark.parametrize("is_alone", [False, True])
def test_missing_gradients_count_as_zero_however_sums_are_held(is_alone: bool) -> None:
    given = [[-torch.zeros(1), None], [None, None], [None, torch.ones(1)], [-torch.zeros(1), None]]
    accumulator = Accumulator(space_of(1, 1), CPU)
    accumulator.start(4, range(4))
    for v, gradients in enumerate(given):
        accumulator.add(gradients, is_last=is_alone)
        accumulator.finish_leaf(v)
    assert accumulator.result().tolist() == [0.0, 1.0]
    assert not accumulator.result().signbit().any(), "zero less nothing is zero"
    assert accumulator.touched.tolist() == [True, True]


def test_what_autograd_gave_is_left_as_it_is() -> None:
    accumulator = Accumulator(space_of(2), CPU)
    accumulator.start(2, range(2))
    given = [torch.ones(2), torch.ones(2)]
    for v, gradient in enumerate(given):
        accumulator.add([gradient], is_last=True)
        accumulator.finish_leaf(v)
    accumulator.result().mul_(3)
    assert all(gradient.equal(torch.ones(2)) for gradient in given)
