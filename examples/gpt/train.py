"""Train a byte-level GPT on Python's own source text.

Alone: `python examples/gpt/train.py`. On a pool: `varuna submit examples/gpt/job.yaml --follow`.
"""

import torch
from data import StandardLibrary
from model import build_model
from torch import Tensor
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR

import varuna_runtime as varuna

CONTEXT = 64
WARM_UP_STEPS = 20


def next_byte_loss(logits: Tensor, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses of all bytes and their number: (m, seq, 256) -> two scalars."""
    _, wanted = batch
    total = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
    return total, torch.tensor(float(wanted.numel()))


def make_optimizer(named: list[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
    """Decay matrices only, as usual for a GPT."""
    matrices = [(name, p) for name, p in named if p.ndim >= 2]
    vectors = [(name, p) for name, p in named if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))


def make_scheduler(optimizer: torch.optim.Optimizer) -> LambdaLR:
    """Warm up linearly, then hold."""
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP_STEPS))


if __name__ == "__main__":
    result = varuna.train(
        model=lambda: build_model(context=CONTEXT),
        loss=next_byte_loss,
        optimizer=make_optimizer,
        scheduler=make_scheduler,
        dataset=StandardLibrary(context=CONTEXT),
        batch_size=32,
        steps=200,
        clip_grad_norm=1.0,
    )
    print(f"{result.step} steps, loss {result.losses[0]:.4f} -> {result.losses[-1]:.4f}")
    print(f"weights {result.weights_sha256}")
