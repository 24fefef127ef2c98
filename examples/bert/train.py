"""Train an unmodified BERT of `transformers` to fill in masked bytes; alone, or on a pool by `job.yaml`."""

import sysconfig
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM

import varuna_runtime as varuna

LENGTH, MASK = 64, 256


class SourceText(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Windows of LENGTH bytes out of the standard library's files, in sorted order."""

    def __init__(self, num_bytes: int = 2**20) -> None:
        text = b"".join(f.read_bytes() for f in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))
        self.bytes = torch.frombuffer(bytearray(text[:num_bytes]), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.bytes) // LENGTH

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"text": self.bytes[index * LENGTH : (index + 1) * LENGTH].long()}


def masked(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Hide 15% of the bytes; torch's generator is seeded for each micro-batch, and the loss sees `hidden`."""
    batch["hidden"] = torch.rand(batch["text"].shape) < 0.15
    return {"input_ids": batch["text"].masked_fill(batch["hidden"], MASK)}


def masked_loss(output: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return sum and number, because micro-batches hide unequally many bytes."""
    hidden = batch["hidden"]
    total = functional.cross_entropy(output.logits[hidden], batch["text"][hidden], reduction="sum")
    return total, hidden.sum()


def build_model() -> BertForMaskedLM:
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256}
    return BertForMaskedLM(BertConfig(vocab_size=257, max_position_embeddings=LENGTH, **sizes))


if __name__ == "__main__":
    result = varuna.train(
        model=build_model,
        loss=masked_loss,
        inputs=masked,
        optimizer=lambda named: torch.optim.AdamW(named, lr=1e-3),
        dataset=SourceText(),
        batch_size=32,
        steps=100,
    )
    print(f"loss {result.losses[0]:.3f} -> {result.losses[-1]:.3f}\nweights {result.weights_sha256}")
