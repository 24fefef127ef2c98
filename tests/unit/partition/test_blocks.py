"""Where cuts fall, from the tree of module calls alone."""

from collections.abc import Sequence

import pytest

from varuna_runtime.partition.blocks import MAX_SEGMENTS, Cut, Path, Shares, cuts


def path(*calls: str) -> Path:
    """`name:Class` of each call, outermost first."""
    return tuple((name, kind) for name, _, kind in (call.partition(":") for call in calls))


def found(
    paths: Sequence[Path],
    *,
    parameters: Sequence[float] | None = None,
    live: Sequence[int | None] | None = None,
) -> list[tuple[str, int]]:
    owned = list(parameters or [1.0] * len(paths))
    total = sum(owned)

    def weights(start: int, stop: int) -> Shares:
        return sum(owned[start:stop]) / total, 0.0

    return [(c.name, c.start) for c in cuts(paths, weights, list(live or [1] * (len(paths) + 1)))]


def block(name: str, kind: str = "Block") -> list[Path]:
    return [path(f"{name}:{kind}", f"{name}.{inner}:Linear") for inner in ("a", "b")]


def test_blocks_are_segments_and_small_parts_between_join_their_neighbours():
    paths = [path("drop:Dropout"), *block("h.0"), *block("h.1"), path("norm:LayerNorm"), *block("h.2")]
    assert found(paths, parameters=[0, 9, 9, 9, 9, 0.1, 9, 9]) == [("h.0", 0), ("h.1", 3), ("h.2", 5)]


def test_a_large_part_beside_the_blocks_is_a_segment_and_a_small_one_is_not():
    paths = [path("table:Embedding"), *block("h.0"), *block("h.1"), path("head:Linear")]
    assert found(paths, parameters=[9, 9, 9, 9, 9, 0.1]) == [("table", 0), ("h.0", 1), ("h.1", 3)]


def test_between_two_parts_the_place_with_the_fewest_live_bytes_is_cut():
    paths = [*block("h.0"), path("norm:LayerNorm"), path("act:GELU"), *block("h.1")]
    weights = [9.0, 9.0, 0.1, 0, 9, 9]
    assert found(paths, parameters=weights, live=[0, 7, 5, 3, 4, 7, 0]) == [("h.0", 0), ("h.1", 3)]
    assert found(paths, parameters=weights, live=[0, 7, None, None, 4, 7, 0]) == [("h.0", 0), ("h.1", 4)]
    assert found(paths, parameters=weights, live=[0, 7, None, None, None, 7, 0]) == [("h.0", 0)]


def stack(name: str, num_layers: int) -> list[Path]:
    inner = [p for i in range(num_layers) for p in block(f"{name}.{i}", "Layer")]
    return [path(f"{name}:Stack", *(f"{n}:{k}" for n, k in p)) for p in inner]


def test_blocks_of_blocks_are_opened_until_there_are_enough():
    both = [*stack("encoder", 3), *stack("decoder", 3)]
    assert [name for name, _ in found(both)] == [f"{s}.{i}" for s in ("encoder", "decoder") for i in range(3)]
    many = [p for s in range(9) for p in stack(f"s{s}", 2)]
    assert [name for name, _ in found(many)] == [f"s{s}" for s in range(9)]


@pytest.mark.parametrize("depth", [1, 3])
def test_wrappers_around_the_model_do_not_matter(depth: int):
    paths = [*block("h.0"), *block("h.1")]
    wrapped = [path(*(f"w{d}:Wrapper" for d in range(depth)), *(f"{n}:{k}" for n, k in p)) for p in paths]
    assert found(wrapped) == found(paths) == [("h.0", 0), ("h.1", 2)]


def test_a_model_without_blocks_is_cut_between_its_layers():
    paths = [path("fc1:Linear"), path("act:ReLU"), path("fc2:Linear"), path("fc3:Linear"), path("fc4:Linear")]
    names = [name for name, _ in found(paths, parameters=[5, 0, 5, 5, 5])]
    assert names == ["fc1", "fc2", "fc3", "fc4"]


def test_a_single_layer_is_a_single_segment():
    assert found([path("fc:Linear")]) == [("fc", 0)]
    assert list(cuts([], lambda *_: (0.0, 0.0), [0])) == [Cut(start=0, name="")]


def test_the_number_of_segments_is_bounded():
    paths = [p for i in range(MAX_SEGMENTS + 50) for p in block(f"h.{i}")]
    starts = [start for _, start in found(paths)]
    assert len(starts) == MAX_SEGMENTS
    assert starts == sorted(set(starts))
    assert starts[0] == 0
