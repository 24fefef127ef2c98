"""What `bitwise` pins; no GPU is needed to see the settings."""

from collections.abc import Iterator

import pytest
import torch

from varuna_runtime.spec.job import Exactness
from varuna_runtime.worker.determinism import pin


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    torch.use_deterministic_algorithms(False)


def test_bitwise_on_cuda_pins_deterministic_kernels() -> None:
    pin(Exactness.BITWISE, torch.device("cuda"))
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize(
    ("exactness", "device"), [(Exactness.STATISTICAL, "cuda"), (Exactness.BITWISE, "cpu")]
)
def test_nothing_is_pinned_where_it_is_not_needed(exactness: Exactness, device: str) -> None:
    pin(exactness, torch.device(device))
    assert not torch.are_deterministic_algorithms_enabled()
