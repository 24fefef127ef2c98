"""Looks at what a script gives to `varuna.train`, before anything is built of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import IterableDataset

from varuna_runtime.spec.errors import InvalidInput, ModelRefused
from varuna_runtime.worker.callbacks import check_callbacks
from varuna_runtime.worker.evaluation import check_evaluation

if TYPE_CHECKING:
    from varuna_runtime.worker.training import Training


def check(training: "Training") -> None:
    """Raise InvalidInput or ModelRefused if an argument of `train` is of the wrong kind."""
    _check_functions(training)
    _check_numbers(training)
    _check_dataset(training.dataset)
    check_evaluation(training.evaluation, is_stream=is_stream(training.dataset))
    check_callbacks(training.callbacks)


def is_stream(dataset: Any) -> bool:
    """True if a data set is read through `open(cursor)`."""
    return callable(getattr(dataset, "open", None))


def _check_dataset(dataset: Any) -> None:
    """Raise ModelRefused unless samples of `dataset` can be named again after a restart."""
    if isinstance(dataset, type):
        raise InvalidInput(f"dataset: seen the class {dataset.__name__}, wanted an instance of it")
    if is_stream(dataset):
        return
    if isinstance(dataset, IterableDataset):
        raise ModelRefused(
            "dataset: an IterableDataset cannot continue where it was; give it "
            "open(cursor) -> iterator of (sample, next_cursor), or use a map-style data set"
        )
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise InvalidInput(
            f"dataset: seen {type(dataset).__name__}, wanted __len__ and __getitem__, or open(cursor)"
        )
    if len(dataset) == 0:
        raise InvalidInput("dataset: it has no samples")


def _check_functions(training: "Training") -> None:
    if isinstance(training.model, nn.Module | list | tuple):
        raise InvalidInput(
            "model: seen a built model, wanted the function that builds it, so that no machine has to hold "
            "all of it: model=build_model or model=lambda: Net(...)"
        )
    if isinstance(training.optimizer, torch.optim.Optimizer):
        raise InvalidInput(
            "optimizer: seen a built optimizer, wanted a function from named parameters to one: "
            "optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)"
        )
    for name in ("model", "loss", "optimizer", "scheduler", "collate", "inputs"):
        value = getattr(training, name)
        may_lack = name in ("scheduler", "collate", "inputs")
        if not callable(value) and not (may_lack and value is None):
            raise InvalidInput(f"{name}: seen {value!r}, wanted a function")
    if training.pretrained is not None and not isinstance(training.pretrained, str | Path):
        raise InvalidInput(f"pretrained: seen {training.pretrained!r}, wanted a path")


def _check_numbers(training: "Training") -> None:
    for name in ("batch_size", "micro_batch_size", "steps", "epochs"):
        value = getattr(training, name)
        if (value is not None or name == "batch_size") and not _is_whole(value, 1):
            raise InvalidInput(f"{name}: seen {value!r}, wanted a whole number >= 1")
    if not _is_whole(training.seed, 0) or training.seed >= 2**63:
        raise InvalidInput(f"seed: seen {training.seed!r}, wanted a whole number from 0 to 2**63 - 1")
    clip = training.clip_grad_norm
    if clip is not None and (isinstance(clip, bool) or not isinstance(clip, int | float) or not clip > 0):
        raise InvalidInput(f"clip_grad_norm: seen {clip!r}, wanted a number > 0, or None")
    if not isinstance(training.shuffle, bool):
        raise InvalidInput(f"shuffle: seen {training.shuffle!r}, wanted True or False")


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
