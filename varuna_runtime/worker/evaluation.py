"""What a script asks of an evaluation, checked, and when one is due: a function of the step alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from varuna_runtime.spec.errors import InvalidInput

if TYPE_CHECKING:
    from varuna_runtime.worker.training import ResolvedTraining

Measured = Tensor | float | tuple[Tensor | float, Tensor | float]  # a mean over the rows, or (sum, weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Measures the model on a data set while it trains, and at the end; argument `evaluation` of `train`.

    Every sample of `dataset` (map-style) is used once, in order, with the model in `eval()` mode and without
    gradients. The results have the same bits on every layout. What is None is as in the training.
    """

    dataset: Any
    every_steps: int | None = None
    every_epoch: bool = False  # after each whole pass over the training's data set
    batch_size: int | None = None  # samples the model and `metrics` see at once; None: a micro-batch
    loss: Callable[[Any, Any], Tensor | tuple[Tensor, Tensor]] | None = None
    metrics: Callable[[Any, Any], Mapping[str, Measured]] | None = None  # of (output, batch)
    collate: Callable[[list[Any]], Any] | None = None
    inputs: Callable[[Any], Any] | None = None

    def is_due(self, step: int, settings: "ResolvedTraining") -> bool:
        """Return whether to evaluate once `step` steps are committed."""
        if step == 0:
            return False
        if step == settings.num_steps or (self.every_steps is not None and step % self.every_steps == 0):
            return True
        if not self.every_epoch or settings.num_samples is None:
            return False
        size = settings.batch_size
        return step * size // settings.num_samples > (step - 1) * size // settings.num_samples


def check_evaluation(evaluation: object, *, is_stream: bool) -> None:
    """Raise InvalidInput if argument `evaluation` of `train` is wrong; `is_stream` tells of the training."""
    if evaluation is None:
        return
    if not isinstance(evaluation, Evaluation):
        raise InvalidInput(
            f"evaluation: seen {type(evaluation).__name__}, wanted varuna.Evaluation(dataset=...)"
        )
    dataset = evaluation.dataset
    if isinstance(dataset, type) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise InvalidInput(
            f"evaluation.dataset: seen {dataset!r}, wanted a map-style data set: __len__ and __getitem__"
        )
    if len(dataset) == 0:
        raise InvalidInput("evaluation.dataset: it has no samples")
    for name in ("every_steps", "batch_size"):
        value = getattr(evaluation, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InvalidInput(f"evaluation.{name}: seen {value!r}, wanted a whole number >= 1, or None")
    if evaluation.every_epoch and evaluation.every_steps is not None:
        raise InvalidInput("evaluation: seen every_steps and every_epoch, wanted one of them")
    if evaluation.every_epoch and is_stream:
        raise InvalidInput("evaluation.every_epoch: a stream has no length; give every_steps instead")
    for name in ("loss", "metrics", "collate", "inputs"):
        value = getattr(evaluation, name)
        if value is not None and not callable(value):
            raise InvalidInput(f"evaluation.{name}: seen {value!r}, wanted a function, or None")
