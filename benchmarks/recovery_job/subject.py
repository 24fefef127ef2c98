"""What every contestant trains: a transformer of 6.3 million parameters on Python's own source text."""

import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

NUM_BYTES, WIDTH, HEADS, BLOCKS, CONTEXT = 256, 256, 4, 8, 32
BATCH = 8  # sequences of a global step; two in each micro-batch of ours
SEED = 1


class Embedding(nn.Module):
    """Byte and position embedding: (m, seq) -> (m, seq, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(NUM_BYTES, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed."""
        places: Tensor = self.position(torch.arange(tokens.shape[1]))
        return self.token(tokens) + places  # type: ignore[no-any-return]  # a Module returns Any


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.expand, self.shrink = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(m, seq, width) -> the same shape."""
        m, seq, width = x.shape
        split = self.qkv(self.norm_1(x)).view(m, seq, 3, HEADS, width // HEADS)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(m, seq, width))
        return x + self.shrink(functional.gelu(self.expand(self.norm_2(x))))  # type: ignore[no-any-return]


def build_model() -> nn.Sequential:
    """Return the model, a child a segment."""
    return nn.Sequential(Embedding(), *(Block() for _ in range(BLOCKS)), nn.Linear(WIDTH, NUM_BYTES))


def optimizer_of(parameters: object) -> torch.optim.Optimizer:
    """Return AdamW, parameter by parameter."""
    return torch.optim.AdamW(parameters, lr=1e-4, foreach=False)  # type: ignore[arg-type]  # named or not


def loss_of(output: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of the next byte."""
    return functional.cross_entropy(output.reshape(-1, NUM_BYTES), targets.reshape(-1))


class Text(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Windows of this interpreter's own library, the same on every rank."""

    def __init__(self) -> None:
        text = b"".join(path.read_bytes() for path in sorted(Path(os.__file__).parent.glob("a*.py")))
        self._bytes = torch.frombuffer(bytearray(text[: 1 << 20]), dtype=torch.uint8)

    def __len__(self) -> int:
        return (len(self._bytes) - 1) // CONTEXT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window = self._bytes[index * CONTEXT : (index + 1) * CONTEXT + 1].long()
        return window[:-1], window[1:]


def stamp(step: int, life: int, loss: float, world: int = 0) -> None:
    """Append a line: when by the clock that all processes share, committed steps, which life, loss, ranks."""
    line = f"{time.monotonic_ns()} {step} {life} {loss.hex()} {world}\n"
    with Path(os.environ["STAMPS"]).open("a") as file:
        file.write(line)
