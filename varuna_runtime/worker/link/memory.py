"""All ranks of a layout in one process: queues for wires."""

from collections import defaultdict, deque
from collections.abc import Callable

import torch
from torch import Tensor

from varuna_runtime.spec.errors import PeerLost, VarunaError
from varuna_runtime.spec.generation import Cause, Fault
from varuna_runtime.worker.link.faults import error_of


class Deadlock(VarunaError):
    """No rank can go on; the message says what each one waits for."""


class MemoryNetwork:
    """The queues between `world_size` ranks; messages are copied, as a wire would."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.num_sent = 0
        self._queues: dict[tuple[int, int, str], deque[tuple[Tensor, ...]]] = defaultdict(deque)
        self._gone: dict[int, str] = {}
        self._fault: Fault | None = None

    def link(self, rank: int) -> "MemoryLink":
        """Return the link of one rank."""
        return MemoryLink(self, rank)

    def lose(self, rank: int, reason: str = "lost") -> None:
        """Let a rank vanish: its peers get what it sent before, then PeerLost."""
        self._gone[rank] = reason

    def drop_messages(self) -> None:
        """Let every message under way vanish, as those of a generation that ended do."""
        self._queues.clear()

    def fail(self, fault: Fault) -> None:
        """Let every rank hear of a fault; the first one counts."""
        self._fault = self._fault or fault

    def put(self, source: int, to: int, tag: str, tensors: tuple[Tensor, ...]) -> None:
        """Append a message."""
        self._raise_fault()
        self._raise_if_gone(to)
        copies = tuple(
            plain.clone(memory_format=torch.contiguous_format).requires_grad_(t.requires_grad)
            for t in tensors
            for plain in [t.detach().resolve_conj().resolve_neg()]
        )
        self._queues[source, to, tag].append(copies)
        self.num_sent += 1

    def take(self, source: int, to: int, tag: str) -> tuple[Tensor, ...] | None:
        """Remove and return the oldest message."""
        queue = self._queues[source, to, tag]
        if self._fault is not None and self._fault.cause is not Cause.PEER_LOST:
            self._raise_fault()
        if queue:
            return queue.popleft()
        self._raise_fault()
        self._raise_if_gone(source)
        return None

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise error_of(self._fault)

    def _raise_if_gone(self, rank: int) -> None:
        if rank in self._gone:
            raise PeerLost(rank, self._gone[rank])


class MemoryLink:
    """A Link over a MemoryNetwork."""

    def __init__(self, network: MemoryNetwork, rank: int) -> None:
        self._network = network
        self._rank = rank

    @property
    def rank(self) -> int:
        """The rank on this side."""
        return self._rank

    def send(self, to: int, tag: str, tensors: tuple[Tensor, ...], *, can_wait: bool = False) -> None:
        """Copy the message into the receiver's queue."""
        self._network.put(self._rank, to, tag, tensors)

    def poll(self, source: int, tag: str) -> tuple[Tensor, ...] | None:
        """Return the next message of (source, tag) or None."""
        return self._network.take(source, self._rank, tag)

    def wait(self) -> None:
        """Refuse: whoever blocks the only thread waits for ever."""
        raise Deadlock(f"rank {self._rank} waits, but the ranks of one process are driven, not waited for")

    def wake(self) -> None:
        """Forget it: nobody waits."""

    def meanwhile(self, work: Callable[[], None]) -> None:
        """Forget it: all ranks of one process have one thread."""

    def abort(self, fault: Fault) -> None:
        """Tell the network."""
        self._network.fail(fault)

    def close(self) -> None:
        """Leave the network."""
        self._network.lose(self._rank, "it closed its link")
