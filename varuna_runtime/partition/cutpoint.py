"""The mark a user places where a model may be cut, and what may cross a cut."""

from typing import Any

from torch import Tensor, nn

from varuna_runtime.spec.errors import ModelRefused


class CutPoint(nn.Module):
    """Identity on one tensor; what runs after it belongs to the next segment.

    Other tensors that later code needs (skip connections, masks) are carried across by themselves.
    """

    def forward(self, value: Tensor) -> Tensor:
        """Return `value` itself."""
        return value


def carried(values: tuple[Any, ...], names: tuple[str, ...]) -> Tensor | tuple[Tensor, ...]:
    """Return what a segment hands to the next one; raises ModelRefused naming a value that is no tensor."""
    for value, name in zip(values, names, strict=True):
        if not isinstance(value, Tensor):
            raise ModelRefused(
                f"{name!r} would cross a cut as {type(value).__name__}; only tensors can: "
                "unpack it before the cut, or compute it again after"
            )
    return values[0] if len(values) == 1 else values
