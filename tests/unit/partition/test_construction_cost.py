"""What making the values of one segment costs."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from varuna_runtime.partition import cut

CPU = torch.device("cpu")


class _MadeBytes(TorchDispatchMode):
    """Counts the bytes of real tensors that operations return."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for leaf in tree_leaves(result):
            is_new = isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in inputs
            if is_new and leaf.device.type != "meta":
                self.total += leaf.untyped_storage().nbytes()
        return result


def test_one_segment_costs_the_memory_of_one_segment():
    with _MadeBytes() as building:
        model = cut(lambda: nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))))
    with _MadeBytes() as making:
        model.materialise(3, seed=0, device=CPU)
    assert building.total < 10_000
    assert making.total <= 1.5 * model.record_segments[3].param_bytes
