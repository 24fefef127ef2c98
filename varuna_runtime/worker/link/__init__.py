"""The seam between ranks: tagged messages of tensors, first in first out; it never knows what they mean."""

from typing import Protocol

from torch import Tensor


class Link(Protocol):
    """What one rank uses to talk to the others of its generation.

    A message keeps each tensor's shape, dtype and `requires_grad` flag. The sender leaves the tensors
    unchanged until an answer proves that they arrived.
    """

    @property
    def rank(self) -> int:
        """The rank on this side."""
        ...

    def send(self, to: int, tag: str, tensors: tuple[Tensor, ...]) -> None:
        """Queue a message; never blocks on the receiver. Raises PeerLost once a peer is gone."""
        ...

    def poll(self, source: int, tag: str) -> tuple[Tensor, ...] | None:
        """Return the next message of (source, tag) or None; raises PeerLost if none can come."""
        ...

    def wait(self) -> None:
        """Block until some poll may answer anew since the last one; raises PeerLost."""
        ...

    def close(self) -> None:
        """Say goodbye to the peers, so that this end is no loss to them; idempotent."""
        ...
