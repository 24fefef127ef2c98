"""Random keys derived from what is computed, never from rank or call order (contract E3)."""

import hashlib


def key(*parts: int | str) -> int:
    """Return a 63-bit seed that is a function of the parts alone; ints and strings do not collide."""
    text = "\x1f".join(f"{type(p).__name__}:{p}" for p in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def forward_key(*, seed: int, step: int, micro_batch: int, segment: int) -> int:
    """Key of a segment's forward and of its recompute."""
    return key("forward", seed, step, micro_batch, segment)


def init_key(*, seed: int, name: str) -> int:
    """Key of a parameter's or buffer's initial values, by its name in the whole model."""
    return key("init", seed, name)


def sample_key(*, seed: int, epoch: int, sample: int) -> int:
    """Key of a sample's transforms."""
    return key("sample", seed, epoch, sample)


def inputs_key(*, seed: int, step: int, micro_batch: int) -> int:
    """Key of a script's choice of model inputs from a micro-batch."""
    return key("inputs", seed, step, micro_batch)
