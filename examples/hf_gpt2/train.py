"""Train an unmodified GPT-2 of `transformers` on Python's own source; alone, or on a pool by `job.yaml`."""

import sysconfig
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

import varuna_runtime as varuna

CONTEXT = 64


class SourceText(torch.utils.data.Dataset[Tensor]):
    """Windows of CONTEXT + 1 bytes out of the standard library's files, in sorted order."""

    def __init__(self, num_bytes: int = 2**20) -> None:
        text = b"".join(f.read_bytes() for f in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))
        self.bytes = torch.frombuffer(bytearray(text[:num_bytes]), dtype=torch.uint8)

    def __len__(self) -> int:
        return (len(self.bytes) - 1) // CONTEXT

    def __getitem__(self, index: int) -> Tensor:
        return self.bytes[index * CONTEXT : (index + 1) * CONTEXT + 1].long()


def build_model() -> GPT2LMHeadModel:
    sizes = {"vocab_size": 256, "n_positions": CONTEXT, "n_embd": 64, "n_layer": 4, "n_head": 4}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, use_cache=False))


def next_byte_loss(output: Any, batch: Tensor) -> tuple[Tensor, Tensor]:
    wanted = batch[:, 1:]
    total = functional.cross_entropy(output.logits.flatten(0, 1), wanted.flatten(), reduction="sum")
    return total, torch.tensor(float(wanted.numel()))


if __name__ == "__main__":
    result = varuna.train(
        model=build_model,
        loss=next_byte_loss,
        optimizer=lambda named: torch.optim.AdamW(named, lr=3e-3, betas=(0.9, 0.95)),
        dataset=SourceText(),
        inputs=lambda batch: {"input_ids": batch[:, :-1]},
        batch_size=32,
        steps=100,
        clip_grad_norm=1.0,
    )
    print(f"loss {result.losses[0]:.3f} -> {result.losses[-1]:.3f}\nweights {result.weights_sha256}")
