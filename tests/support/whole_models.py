"""Real models for the plain loop: unmodified ones of transformers, with dropout, and the example's ResNet."""

from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor
from torch.nn import functional

from tests.support import toys, transformers_models
from tests.support.truth import Example
from varuna_runtime.worker.training import Training

EXAMPLES = Path(__file__).parents[2] / "examples"


def _script(name: str) -> ModuleType:
    """Return the script of an example as a module."""
    found = spec_from_file_location(f"example_{name}", EXAMPLES / name / "train.py")
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def _images(**changes: Any) -> Training:
    vision = _script("vision")
    return toys.image_training(
        **{
            "model": lambda: vision.ResNet(4),
            "dataset": vision.Shapes(),
            "loss": lambda output, batch: functional.cross_entropy(output, batch[1]),
            **changes,
        }
    )


class Padded(transformers_models.Sentences):
    """Ends every sequence with padding.

    Run as they are, and only then, the models look for a micro-batch without padding and take another kernel.
    """

    def __init__(self, *masks: str) -> None:
        super().__init__()
        self._masks = masks

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        sample = super().__getitem__(index)
        sample["attention_mask"][-1], sample["labels"][-1] = 0, -100
        return sample | dict.fromkeys(self._masks, sample["attention_mask"])


def _transformer(name: str, *masks: str) -> Any:
    return partial(
        transformers_models.training, name, dropout=True, dataset=Padded(*masks), clip_grad_norm=0.5
    )


MODELS: dict[str, Example] = {
    "gpt2": Example(
        _transformer("gpt2"),
        {"transformer.wte": 1, "transformer.h.0": 2, "transformer.h.1": 3},
        copies={"lm_head.weight": "transformer.wte.weight"},
    ),
    "bert": Example(
        _transformer("bert"),
        {"bert.embeddings": 1, "bert.encoder.layer.0": 2, "bert.encoder.layer.1": 3},
        copies={"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight"},
        names={"cls.predictions.decoder.bias": "cls.predictions.bias"},
    ),
    "llama": Example(_transformer("llama"), {}),  # without dropout
    "t5": Example(
        _transformer("t5", "decoder_attention_mask"),
        {
            "encoder.embed_tokens": 1,
            "encoder.block.0": 2,
            "encoder.block.1": 3,
            "decoder.embed_tokens": 4,
            "decoder.block.0": 5,
            "decoder.block.1": 6,
        },
        copies={"decoder.embed_tokens.weight": "shared.weight", "lm_head.weight": "shared.weight"},
        names={"encoder.embed_tokens.weight": "shared.weight"},
    ),
    "resnet": Example(_images, {}),
}
