"""Keyed global random state: torch's CPU generator, Python's random and numpy, set and put back."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_everything(key: int) -> None:
    """Seed the three global CPU generators; never touches a CUDA generator or context."""
    torch.default_generator.manual_seed(key)
    random.seed(key)
    np.random.seed((key ^ key >> 32) & 0xFFFFFFFF)  # of 32 bits: by an array it takes ten times as long


@contextmanager
def preserved_random_state() -> Iterator[None]:
    """Put the three global CPU generators back as they were."""
    torch_state, python_state, numpy_state = (
        torch.get_rng_state(),
        random.getstate(),
        np.random.get_state(),
    )
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def drawn_in_python() -> object:
    """Return something that is equal as long as nobody draws from Python's random or from numpy."""
    kind, numbers, *rest = np.random.get_state()
    return random.getstate(), kind, np.asarray(numbers).tobytes(), tuple(rest)
