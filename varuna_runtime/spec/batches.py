"""Which sample is used where: a pure function of (seed, step), whatever the layout is (contracts E1, E2).

Training runs over the endless concatenation of epochs; step s takes positions [s*B, (s+1)*B) of it, so each
sample is used exactly once an epoch. Only the very last step of an epoch-bounded training may be short.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from varuna_runtime.spec.layout import BatchShape
from varuna_runtime.spec.reduction import share
from varuna_runtime.spec.rng import key


@dataclass(frozen=True, slots=True)
class SampleRef:
    """One use of a sample."""

    epoch: int
    sample: int


def num_micro_batches(num_samples: int, micro_batch_size: int) -> int:
    """M = ceil(B / m); the last one may be ragged."""
    return -(-num_samples // micro_batch_size)


def micro_batch_rows(num_samples: int, micro_batch_size: int, index: int) -> range:
    """Rows of micro-batch `index` inside its global batch."""
    return range(index * micro_batch_size, min((index + 1) * micro_batch_size, num_samples))


def virtual_replicas(batch: BatchShape, num_micro: int) -> int:
    """V of a step: the recorded V, at most its number of micro-batches (a short last step may have fewer)."""
    return min(batch.virtual_replicas, num_micro)


def default_virtual_replicas(batch_size: int, micro_batch_size: int, nodes_max: int) -> int:
    """V when the job file leaves it open: smallest power of two >= 4 x `nodes_max`, but at most M."""
    wanted = 1 << (4 * nodes_max - 1).bit_length()
    num_micro = num_micro_batches(batch_size, micro_batch_size)
    return min(wanted, 1 << (num_micro.bit_length() - 1))


def replica_micro_batches(num_micro: int, virtual: int, replicas: int, replica: int) -> tuple[range, ...]:
    """Micro-batches of a replica, one contiguous range per virtual replica it owns, ascending.

    Empty when a short last step has fewer virtual replicas than there are replicas.
    """
    return tuple(share(num_micro, virtual, v) for v in share(virtual, replicas, replica))


def step_rows(step: int, batch_size: int, total_samples: int | None) -> range:
    """Positions of a step in the endless order; short or empty only at the end of `total_samples`."""
    stop = (step + 1) * batch_size
    return range(step * batch_size, stop if total_samples is None else min(stop, total_samples))


def sample_refs(positions: range, num_samples: int, seed: int, *, shuffle: bool) -> tuple[SampleRef, ...]:
    """Return the samples at `positions` of the endless order over a map-style data set."""
    where = np.arange(positions.start, positions.stop, dtype=np.int64)
    epochs, offsets = np.divmod(where, num_samples)
    if not shuffle:
        return tuple(SampleRef(int(e), int(o)) for e, o in zip(epochs, offsets, strict=True))
    refs: list[SampleRef] = []
    for epoch in np.unique(epochs):
        picked = permuted(offsets[epochs == epoch], num_samples, key("epoch", seed, int(epoch)))
        refs.extend(SampleRef(int(epoch), int(s)) for s in picked)
    return tuple(refs)


def permuted(index: NDArray[np.int64], size: int, seed: int) -> NDArray[np.int64]:
    """Apply a keyed permutation of range(size) to each index, without materialising it.

    A balanced Feistel network over the next even power of two, walked until it lands inside
    range(size) (cycle walking, Black and Rogaway 2002): one to four walks an index on average.
    """
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half_bits) - 1)
    round_keys = [np.uint64(key("round", seed, r)) for r in range(6)]
    value = index.astype(np.uint64)
    pending = np.ones(value.shape, dtype=bool)
    while pending.any():
        value[pending] = _feistel(value[pending], half_bits, mask, round_keys)
        pending &= value >= np.uint64(size)
    return value.astype(np.int64)


def _feistel(
    value: NDArray[np.uint64], half_bits: int, mask: np.uint64, round_keys: list[np.uint64]
) -> NDArray[np.uint64]:
    left, right = value >> np.uint64(half_bits), value & mask
    for round_key in round_keys:
        left, right = right, left ^ (_mix(right + round_key) & mask)
    return (left << np.uint64(half_bits)) | right


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the SplitMix64 finaliser (Steele, Lea, Flood 2014) of each value, modulo 2^64."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
