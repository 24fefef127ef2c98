"""What a script may not have done before `varuna.train`, because its workers are forks of its process."""

import threading

import torch

from varuna_runtime.spec.errors import ModelRefused


def refuse_unforkable() -> None:
    """Raise ModelRefused if a fork of this process could not train."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise ModelRefused(
            "the script initialised CUDA before varuna.train(); a forked worker cannot use that context. "
            "Build tensors on the CPU or the meta device until train() is called."
        )
    if threading.active_count() > 1:
        names = ", ".join(sorted(t.name for t in threading.enumerate() if t is not threading.main_thread()))
        raise ModelRefused(
            f"the script runs threads before varuna.train(): {names}; a forked worker would inherit their "
            "locks but not them. Start them inside the data set or the model instead."
        )
