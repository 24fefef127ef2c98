"""Luck by hash: the same draw for the same op or message, in whatever schedule and layout it is met.

Small simulations call these functions, large ones compile them: integers below 2^63, and no other calls.
"""

from typing import Protocol

ACTIVATION, GRADIENT = 5, 6
"""Messages, numbered after the kinds of ops."""
SEEDS = 1 << 31  # seeds are below that


class Quantiles(Protocol):
    """A sequence of numbers, or an array of them."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: int, /) -> float: ...


def luck(seed: int, stage: int, micro: int, what: int) -> int:
    """Return 31 bits that are a function of the arguments alone; `what` is a kind of op or of message."""
    bits = ((micro * 4099 + stage) * 8 + what) & 0x7FFFFFFF
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & 0x7FFFFFFF
    bits = ((bits ^ (bits >> 15)) * 0x46AC2687) & 0x7FFFFFFF
    bits = (bits ^ (bits >> 16) ^ (seed * 0x1E3779B1)) & 0x7FFFFFFF
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & 0x7FFFFFFF
    bits = ((bits ^ (bits >> 15)) * 0x46AC2687) & 0x7FFFFFFF
    return bits ^ (bits >> 16)


def drawn(quantiles: Quantiles, bits: int) -> float:
    """Return the quantile at `bits` / 2^31 of at least two that are evenly spaced from 0 to 1."""
    at = bits * (len(quantiles) - 1) / 2147483648.0
    below = int(at)
    return quantiles[below] + (at - below) * (quantiles[below + 1] - quantiles[below])
