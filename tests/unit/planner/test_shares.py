"""What replicas share equals the contract's own definition, which is slower."""

import pytest

from varuna_manager.planner.pipeline import most_micro_batches, most_whole, reduction_volume, shares
from varuna_runtime.spec.batches import micro_batch_rows, replica_micro_batches
from varuna_runtime.spec.layout import BatchShape
from varuna_runtime.spec.reduction import owned_nodes, share


@pytest.mark.parametrize("virtual", [1, 2, 3, 6, 7, 16, 33])
@pytest.mark.parametrize("num_micro", [64, 67])
def test_every_micro_batch_is_counted_with_the_replica_that_has_it(virtual: int, num_micro: int) -> None:
    batch = BatchShape(batch_size=num_micro, micro_batch_size=1, virtual_replicas=virtual)
    for replicas in range(1, virtual + 1):
        wanted = tuple(
            sum(map(len, replica_micro_batches(num_micro, virtual, replicas, d))) for d in range(replicas)
        )
        assert shares(batch, replicas) == wanted
        assert most_micro_batches(batch, replicas) == max(wanted)


@pytest.mark.parametrize("batch_size", [64, 67])
def test_a_short_micro_batch_is_not_whole_and_its_replica_is_the_last(batch_size: int) -> None:
    batch = BatchShape(batch_size=batch_size, micro_batch_size=4, virtual_replicas=8)
    for replicas in range(1, 9):
        whole = [
            sum(len(micro_batch_rows(batch_size, 4, micro)) == 4 for own in owned for micro in own)
            for owned in (replica_micro_batches(-(-batch_size // 4), 8, replicas, d) for d in range(replicas))
        ]
        assert most_whole(batch, replicas) == max(whole)


@pytest.mark.parametrize("virtual", range(1, 41))
def test_the_reduction_sends_every_canonical_node_that_a_replica_owns(virtual: int) -> None:
    for replicas in range(1, virtual + 1):
        most = max(len(owned_nodes(virtual, share(virtual, replicas, d))) for d in range(replicas))
        assert reduction_volume(virtual, replicas) == (most + 1) * (replicas - 1) / replicas
