"""Small models, data sets and trainings on which every rule of the exactness contract bites."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from varuna_runtime.worker.training import Training

WIDTH = 8
VOCABULARY = 11


class Rows:
    """A map-style data set of (x, y) rows that are functions of their index."""

    def __init__(self, make: Callable[[torch.Generator], tuple[Tensor, Tensor]], length: int) -> None:
        self._make = make
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._make(torch.Generator().manual_seed(index))


def regression_rows(length: int = 23) -> Rows:
    return Rows(lambda g: (torch.randn(WIDTH, generator=g), torch.randn(3, generator=g)), length)


def token_rows(length: int = 23, sequence: int = 5) -> Rows:
    def make(g: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(VOCABULARY, (sequence + 1,), generator=g)
        return tokens[:-1], tokens[1:]

    return Rows(make, length)


def image_rows(length: int = 23, size: int = 5) -> Rows:
    def make(g: torch.Generator) -> tuple[Tensor, Tensor]:
        return torch.randn(2, size, size, generator=g), torch.randint(3, (), generator=g)

    return Rows(make, length)


def dropout_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, 16),
        nn.Sequential(nn.GELU(), nn.Dropout(0.3)),
        nn.Linear(16, 16),
        nn.Sequential(nn.LayerNorm(16), nn.Dropout(0.2)),
        nn.Linear(16, 3),
    )


def batch_norm_net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, 12),
        nn.BatchNorm1d(12),
        nn.Sequential(nn.ReLU(inplace=True), nn.Linear(12, 12, bias=False)),
        nn.BatchNorm1d(12, momentum=None),
        nn.Linear(12, 3),
    )


class Embed(nn.Module):
    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values = self.table(tokens)
        return values, values, tokens % 2  # a skip tensor and a mask travel along


class SkipBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, values: Tensor, skip: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        changed = self.drop(torch.tanh(self.inner(values))) + 0.1 * skip
        return changed * (1 + mask.unsqueeze(-1)), skip, mask


class TiedHead(nn.Module):
    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.weight = table.weight

    def forward(self, values: Tensor, skip: Tensor, mask: Tensor) -> Tensor:
        return functional.linear(self.norm(values + skip), self.weight)


def tied_language_model(blocks: int = 2) -> nn.Module:
    table = nn.Embedding(VOCABULARY, WIDTH)
    return nn.Sequential(Embed(table), *(SkipBlock() for _ in range(blocks)), TiedHead(table))


class Residual(nn.Module):
    """Two convolutions with batch norms beside a shortcut: (m, channels, h, w) -> the same."""

    def __init__(self, channels: int, momentum: float | None) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels, momentum=momentum)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.after = nn.BatchNorm2d(channels)

    def forward(self, values: Tensor) -> Tensor:
        inner = functional.relu(self.norm(self.first(values)), inplace=True)
        return functional.relu(values + self.after(self.second(inner)))


def batch_norm_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.Sequential(nn.BatchNorm2d(6), nn.ReLU(inplace=True)),
        Residual(6, momentum=0.1),
        Residual(6, momentum=None),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(6, 3)),
    )


def squared_error(output: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.mse_loss(output, batch[1])


def token_loss(output: Tensor, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Uneven token counts: targets of class 0 do not count."""
    target = batch[1]
    total = functional.cross_entropy(
        output.reshape(-1, VOCABULARY), target.reshape(-1), ignore_index=0, reduction="sum"
    )
    return total, (target != 0).sum()


def adamw(named: Any) -> torch.optim.Optimizer:
    """Two groups, as scripts make them: no decay for vectors."""
    named = list(named)
    return torch.optim.AdamW(
        [
            {"params": [(n, p) for n, p in named if p.ndim > 1], "weight_decay": 0.1},
            {"params": [(n, p) for n, p in named if p.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=0.01,
    )


def momentum_sgd(named: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(named), lr=0.05, momentum=0.9)


def cosine(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)


def mlp_training(**changes: Any) -> Training:
    return _training(
        {
            "model": dropout_mlp,
            "loss": squared_error,
            "optimizer": adamw,
            "scheduler": cosine,
            "dataset": regression_rows(),
        },
        changes,
    )


def batch_norm_training(**changes: Any) -> Training:
    return _training(
        {
            "model": batch_norm_net,
            "loss": squared_error,
            "optimizer": momentum_sgd,
            "dataset": regression_rows(),
        },
        changes,
    )


def tied_training(**changes: Any) -> Training:
    return _training(
        {
            "model": tied_language_model,
            "loss": token_loss,
            "optimizer": adamw,
            "dataset": token_rows(),
        },
        changes,
    )


def image_training(**changes: Any) -> Training:
    return _training(
        {
            "model": batch_norm_cnn,
            "loss": lambda output, batch: functional.cross_entropy(output, batch[1]),
            "optimizer": momentum_sgd,
            "dataset": image_rows(),
        },
        changes,
    )


def _training(base: dict[str, Any], changes: dict[str, Any]) -> Training:
    shared = {"batch_size": 11, "steps": 3, "clip_grad_norm": 0.5, "seed": 5}
    return Training(**{**shared, **base, **changes})
