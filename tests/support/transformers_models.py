"""Unmodified models of the transformers library, built from their config classes, as small as they get."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from varuna_runtime.worker.training import Training

VOCABULARY = 101
_WIDTH = 32


def gpt2(**changes: Any) -> nn.Module:
    config = transformers.GPT2Config(
        n_layer=2,
        n_embd=_WIDTH,
        n_head=2,
        vocab_size=VOCABULARY,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=2,
        **changes,
    )
    return transformers.GPT2LMHeadModel(config)


def bert(**changes: Any) -> nn.Module:
    config = transformers.BertConfig(
        num_hidden_layers=2,
        hidden_size=_WIDTH,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
        **changes,
    )
    return transformers.BertForMaskedLM(config)


def llama(**changes: Any) -> nn.Module:
    config = transformers.LlamaConfig(
        num_hidden_layers=2,
        hidden_size=_WIDTH,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=64,
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
        **changes,
    )
    return transformers.LlamaForCausalLM(config)


def t5(**changes: Any) -> nn.Module:
    config = transformers.T5Config(
        num_layers=2,
        d_model=_WIDTH,
        d_kv=16,
        d_ff=64,
        num_heads=2,
        vocab_size=VOCABULARY,
        decoder_start_token_id=0,
        **changes,
    )
    return transformers.T5ForConditionalGeneration(config)


MODELS: Mapping[str, Callable[..., nn.Module]] = {"gpt2": gpt2, "bert": bert, "llama": llama, "t5": t5}
NO_DROPOUT: Mapping[str, dict[str, float]] = {
    "gpt2": {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    "bert": {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0},
    "llama": {},
    "t5": {"dropout_rate": 0.0},
}


class Sentences:
    """Samples as Hugging Face data sets give them: ids, a mask of padding, labels."""

    def __init__(self, length: int = 23, sequence: int = 9) -> None:
        self._length, self._sequence = length, sequence

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(3, VOCABULARY, (self._sequence,), generator=generator)
        mask = (torch.arange(self._sequence) < self._sequence - index % 3).long()
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def output_loss(output: Any, batch: Any) -> Tensor:
    loss: Tensor = output.loss
    return loss


def adamw(named: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(list(named), lr=0.01, foreach=False)


def training(model: str, *, dropout: bool = False, **changes: Any) -> Training:
    given = {} if dropout else NO_DROPOUT[model]
    base: dict[str, Any] = {
        "model": lambda: MODELS[model](**given),
        "loss": output_loss,
        "optimizer": adamw,
        "dataset": Sentences(),
        "batch_size": 5,
        "steps": 2,
        "seed": 5,
    }
    return Training(**{**base, **changes})
