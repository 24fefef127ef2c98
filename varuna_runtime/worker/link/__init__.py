"""The seam between ranks: tagged messages of tensors, first in first out; it never knows what they mean."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from varuna_runtime.spec.generation import Fault


class Link(Protocol):
    """What one rank uses to talk to the others of its generation: one thread, and what it does `meanwhile`.

    A message keeps each tensor's shape, dtype and `requires_grad` flag. The sender leaves the tensors
    unchanged until an answer proves that they arrived.

    Once a peer is gone, or says that some rank failed, every rank hears of that first fault, also through
    ranks between: then `send`, `wait`, and `poll` raise PeerLost or PeerFailed. What a lost peer had sent is
    delivered before.
    """

    @property
    def rank(self) -> int:
        """The rank on this side."""
        ...

    def send(self, to: int, tag: str, tensors: tuple[Tensor, ...], *, can_wait: bool = False) -> None:
        """Queue a message; never blocks on the receiver. Raises PeerLost or PeerFailed after a fault.

        One that `can_wait` may stay behind others sent before it, to whomever, and arrive after later ones;
        so send either all messages of a tag that way or none.
        """
        ...

    def poll(self, source: int, tag: str) -> tuple[Tensor, ...] | None:
        """Return the next message of (source, tag) or None; PeerLost or PeerFailed if none can come."""
        ...

    def wait(self) -> None:
        """Block until some poll may answer anew, or raise, since the last one."""
        ...

    def wake(self) -> None:
        """Have `wait` return as if a message had come; from any thread."""
        ...

    def meanwhile(self, work: Callable[[], None]) -> None:
        """Let `work` be called, in a thread of the link's, when messages came while the rank computes.

        Not every link has such a thread, so `work` must only be what the rank would do later as well. It
        may send and poll, and must not raise.
        """
        ...

    def abort(self, fault: Fault) -> None:
        """Tell the peers why this rank ends, unless they know of a fault; returns soon; the last call."""
        ...

    def close(self) -> None:
        """Say goodbye to the peers, so that this end is no loss to them; idempotent."""
        ...
