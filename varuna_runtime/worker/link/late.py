"""A link for a rank whose peers are not there yet: the engine is built first, the group joined later."""

from collections.abc import Callable

from torch import Tensor

from varuna_runtime.spec.generation import Fault
from varuna_runtime.worker.link import Link


class LateLink:
    """Passes everything on to the link that `attach` gives it."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._link: Link | None = None
        self._meanwhile: Callable[[], None] | None = None

    @property
    def rank(self) -> int:
        """The rank on this side."""
        return self._rank

    def attach(self, link: Link) -> None:
        """From now on, use this link."""
        assert link.rank == self._rank
        self._link = link
        if self._meanwhile is not None:
            link.meanwhile(self._meanwhile)

    def send(self, to: int, tag: str, tensors: tuple[Tensor, ...], *, can_wait: bool = False) -> None:
        """See Link."""
        self._attached.send(to, tag, tensors, can_wait=can_wait)

    def poll(self, source: int, tag: str) -> tuple[Tensor, ...] | None:
        """See Link."""
        return self._attached.poll(source, tag)

    def wait(self) -> None:
        """See Link."""
        self._attached.wait()

    def wake(self) -> None:
        """See Link; nobody waits before a link was attached."""
        if self._link is not None:
            self._link.wake()

    def meanwhile(self, work: Callable[[], None]) -> None:
        """See Link."""
        self._meanwhile = work
        if self._link is not None:
            self._link.meanwhile(work)

    def abort(self, fault: Fault) -> None:
        """See Link; nobody to tell before a link was attached."""
        if self._link is not None:
            self._link.abort(fault)

    def close(self) -> None:
        """See Link; nothing to leave before a link was attached."""
        if self._link is not None:
            self._link.close()

    @property
    def _attached(self) -> Link:
        assert self._link is not None, "no group yet"
        return self._link
