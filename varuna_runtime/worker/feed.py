"""What the ends of a pipeline read: micro-batches, and what the model takes of them, on the rank's device."""

from typing import Any

from torch import Tensor, device
from torch.utils import _pytree as pytree

from varuna_runtime.spec.rng import inputs_key
from varuna_runtime.worker.data import SampleSource
from varuna_runtime.worker.randomness import seed_generators
from varuna_runtime.worker.training import Training

Fed = tuple[Any, tuple[Tensor, ...]]  # the batch, as the loss sees it, and the model's inputs


class Feed:
    """Reads for one rank; where `needs_proof`, the first micro-batch is read twice and must be the same."""

    def __init__(
        self,
        training: Training,
        source: SampleSource,
        *,
        size: int,
        seed: int,
        device: device,
        needs_proof: bool,
    ) -> None:
        self._training, self._source = training, source
        self._size, self._seed, self._device = size, seed, device
        self._needs_proof = needs_proof

    def read(self, step: int, index: int) -> Fed:
        """Return the micro-batch and the model's inputs; leaves the random state anywhere.

        Both ends choose inputs, under the same key: a script's `inputs` may draw masks and write them into
        the batch for the loss to see.
        """
        read = self._source.proven_micro_batch if self._needs_proof else self._source.fetch
        batch = read(step, index, self._size)
        self._needs_proof = False
        if self._device.type != "cpu":
            batch = pytree.tree_map_only(Tensor, lambda t: t.to(self._device, non_blocking=True), batch)
        if self._training.inputs is not None:
            seed_generators(inputs_key(seed=self._seed, step=step, micro_batch=index), self._device)
        return batch, self._training.model_inputs(batch)
