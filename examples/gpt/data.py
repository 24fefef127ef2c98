"""Real data on every machine: the source text of Python's own standard library, as bytes."""

import sysconfig
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset


class StandardLibrary(Dataset[tuple[Tensor, Tensor]]):
    """Windows of `context` bytes and the bytes that follow each; the order of files is sorted."""

    def __init__(self, *, context: int, max_bytes: int = 2**20) -> None:
        text = _source_text(max_bytes)
        self._bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._context = context

    def __len__(self) -> int:
        return (len(self._bytes) - 1) // self._context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self._context
        window = self._bytes[start : start + self._context + 1].long()
        return window[:-1], window[1:]


def _source_text(max_bytes: int) -> bytes:
    folder = Path(sysconfig.get_path("stdlib"))
    parts: list[bytes] = []
    left = max_bytes
    for path in sorted(folder.glob("*.py")):
        parts.append(path.read_bytes()[:left])
        left -= len(parts[-1])
        if left <= 0:
            break
    return b"".join(parts)
