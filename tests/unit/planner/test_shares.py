"""What replicas share equals the contract's own definition, which is slower."""

import pytest

from varuna_manager.planner.pipeline import most_micro_batches, reduction_volume, shares
from varuna_runtime.spec.batches import replica_micro_batches
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


@pytest.mark.parametrize("virtual", range(1, 41))
def test_the_reduction_sends_every_canonical_node_that_a_replica_owns(virtual: int) -> None:
    for replicas in range(1, virtual + 1):
        most = max(len(owned_nodes(virtual, share(virtual, replicas, d))) for d in range(replicas))
        assert reduction_volume(virtual, replicas) == (most + 1) * (replicas - 1) / replicas
