"""What a job leaves to be chosen, resolved the same way by planner, worker and lone run."""

from varuna_runtime.spec.batches import num_micro_batches


def default_virtual_replicas(batch_size: int, micro_batch_size: int, nodes_max: int) -> int:
    """V when it is auto: the smallest power of two >= 4 x nodes_max, at most the largest one <= M."""
    wanted = 1 << (4 * nodes_max - 1).bit_length()
    largest = 1 << (num_micro_batches(batch_size, micro_batch_size).bit_length() - 1)
    return min(wanted, largest)


def steps_of_epochs(epochs: int, num_samples: int, batch_size: int) -> int:
    """Return the number of steps that use each sample `epochs` times; only the last may be short."""
    return -(-epochs * num_samples // batch_size)
