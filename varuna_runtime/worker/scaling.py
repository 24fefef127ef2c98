"""The loss scale of fp16: which steps are applied, and how the scale follows; equal on every rank.

A step whose loss or gradient norm is not finite is skipped on all ranks alike: both come out of the step's
agreements. Factors and interval are those of torch.amp.GradScaler. Our loss is a sum, whose gradients are
larger than those of the mean by the weight, so the first overflow takes that weight off at once.
"""

import math
from dataclasses import replace

from varuna_runtime.spec.errors import StepDiverged
from varuna_runtime.spec.job import Precision
from varuna_runtime.spec.manifest import ScalerState

INITIAL = 2.0**16  # for a mean; every scale is a power of two, so that scaling itself rounds nothing
GROWTH, BACKOFF = 2.0, 0.5
INTERVAL = 2000  # applied steps in a row before the scale grows
LARGEST, FLOOR = 2.0**24, 2.0**-16
PATIENCE = 8  # steps in a row that may be skipped at the floor


class LossScale:
    """Scale of one training: dynamic under fp16, else 1 for ever."""

    def __init__(self, precision: Precision) -> None:
        self._state: ScalerState | None = None
        if precision is Precision.FP16:
            self._state = ScalerState(scale=INITIAL, good_steps=0, floor_steps=0, has_applied=False)

    @property
    def scale(self) -> float:
        """What the running step multiplies its loss by."""
        return 1.0 if self._state is None else self._state.scale

    @property
    def state(self) -> ScalerState | None:
        """What a checkpoint holds; None unless the scale is dynamic."""
        return self._state

    def restore(self, state: ScalerState | None) -> None:
        """Continue from a checkpoint; one of another precision has nothing to say."""
        if self._state is not None and state is not None:
            self._state = state

    def judge(self, step: int, *, norm: float, loss: float, weight: float) -> bool:
        """Return whether the step is applied, and adapt; `weight` is that of a micro-batch, on average.

        Raises StepDiverged where a step that is not finite cannot be helped by a smaller scale.
        """
        is_finite = math.isfinite(norm) and math.isfinite(loss)
        if self._state is not None:
            self._state = _after(self._state, is_finite=is_finite, weight=weight)
            if self._state.floor_steps > PATIENCE:
                raise StepDiverged(
                    f"step {step}: the last {self._state.floor_steps} steps overflowed in fp16, though the "
                    f"loss scale is down to {FLOOR:g} (norm {norm}, loss {loss}); none of them was applied. "
                    "Lower the learning rate, use precision: bf16, or keep large values out of the forward"
                )
        elif not math.isfinite(norm):
            raise StepDiverged(
                f"step {step}: the gradients are not finite (norm {norm}, loss {loss}); "
                "the step was not applied. Lower the learning rate, or clip the gradients"
            )
        elif not is_finite:
            raise StepDiverged(f"step {step}: the loss is {loss}; the step was not applied")
        return is_finite


def _after(state: ScalerState, *, is_finite: bool, weight: float) -> ScalerState:
    if not is_finite:
        lowered = state.scale * BACKOFF
        if not state.has_applied:
            lowered = min(lowered, INITIAL / _power_of_two(weight))
        floor_steps = state.floor_steps + 1 if state.scale <= FLOOR else 0
        return replace(state, scale=max(lowered, FLOOR), good_steps=0, floor_steps=floor_steps)
    good_steps, scale = state.good_steps + 1, state.scale
    if good_steps == INTERVAL:
        good_steps, scale = 0, min(scale * GROWTH, LARGEST)
    return ScalerState(scale=scale, good_steps=good_steps, floor_steps=0, has_applied=True)


def _power_of_two(weight: float) -> float:
    """Return the smallest power of two that is at least `weight` and 1."""
    return 2.0 ** math.ceil(math.log2(max(weight, 1.0)))
