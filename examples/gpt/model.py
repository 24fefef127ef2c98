"""A small byte-level GPT as a plain `nn.Sequential`: each child is a segment that Varuna may cut at."""

import torch
from torch import Tensor, nn
from torch.nn import functional

NUM_BYTES = 256


class Embedding(nn.Module):
    """Byte and position embedding: (m, seq) -> (m, seq, width)."""

    def __init__(self, width: int, context: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(NUM_BYTES, width)
        self.position = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("positions", torch.arange(context), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.position(self.positions[: tokens.shape[1]])
        return self.dropout(self.token(tokens) + places)


class Attention(nn.Module):
    """Causal self-attention: (m, seq, width) -> (m, seq, width)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        m, seq, width = x.shape
        q, k, v = self.qkv(x).view(m, seq, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(m, seq, width))


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm_2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_1(x)))
        return x + self.dropout(self.shrink(functional.gelu(self.expand(self.norm_2(x)))))


class Head(nn.Module):
    """Final norm and projection to bytes; its weight is the embedding's."""

    def __init__(self, width: int, tied: nn.Parameter) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.weight = tied

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.norm(x), self.weight)


def build_model(
    *, width: int = 64, heads: int = 4, blocks: int = 4, context: int = 64, dropout: float = 0.1
) -> nn.Sequential:
    """Return the model; with the defaults about 0.2 million parameters."""
    embedding = Embedding(width, context, dropout)
    middle = [Block(width, heads, dropout) for _ in range(blocks)]
    model = nn.Sequential(embedding, *middle, Head(width, embedding.token.weight))
    model.apply(_initialise)
    return model


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
