"""Settings under which the same operation on the same values gives the same bits on every rank and start."""

import os

import torch

from varuna_runtime.spec.job import Exactness


def pin(exactness: Exactness, device: torch.device) -> None:
    """Pin the kernels that `bitwise` relies on; call it before the first operation on `device`.

    On CPU the thread count decides alone, and it is recorded with the job. On CUDA see
    https://docs.pytorch.org/docs/stable/notes/randomness.html; TF32 would depend on the library's heuristics.
    """
    if exactness is not Exactness.BITWISE or device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first handle is made
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # made at import
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
