"""When a committed step is told: once its copies are made, so that no worker's death takes it back.

Each rank says to rank 0 that its own copy is made. When all have, rank 0 has everyone tell the step. Ranks of
the first stage let their copies count only then: a step that nobody was told of is not gone on from, so that
none is passed over. A step that is not copied is told at once, and none waits beyond the end of the next.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import torch

from varuna_runtime.spec.errors import PeerFailed, PeerLost
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.signals import StepDone

_MADE, _TOLD = "copy made", "step told"


class Keeper(Protocol):
    """This rank's copies; see `keeping.Keeper`."""

    @property
    def made_step(self) -> int:
        """The newest step that is copied."""
        ...

    def release(self) -> None:
        """Let the copy count."""
        ...


class Committing:
    """One rank's side; for the thread of the link."""

    def __init__(self, link: Link, world_size: int, keeper: Keeper) -> None:
        self._link = link
        self._others = range(1, world_size)
        self._keeper = keeper
        self._heard: dict[int, int] = {}  # the newest step that a rank said something of
        self._step = -1  # committed steps of the one that is to be told
        self._tell: Callable[[], object] | None = None
        self._has_said = False  # that its copy is made
        self.is_copied = False  # the last step, on all ranks or none

    def follow(self, done: StepDone, tell: Callable[[], object]) -> None:
        """Have `tell` called when the step is to be told, now perhaps; the step before it is told now."""
        self.tell_now()
        self._step, self._tell, self._has_said = done.record.step + 1, tell, False
        self.is_copied = done.keep
        if not done.keep:
            self.tell_now()

    def look(self) -> None:
        """Tell the step if that may be by now."""
        if self._tell is None:
            return
        is_made = self._keeper.made_step >= self._step
        if self._link.rank:
            if is_made and not self._has_said:
                self._has_said = True
                self._link.send(0, _MADE, (torch.tensor(self._step),))
            if self._newest(0, _TOLD) >= self._step:
                self.tell_now()
        elif is_made and all(self._newest(rank, _MADE) >= self._step for rank in self._others):
            for rank in self._others:
                self._link.send(rank, _TOLD, (torch.tensor(self._step),))
            self.tell_now()

    def tell_now(self) -> None:
        """Tell what is to be told, copied or not."""
        tell, self._tell = self._tell, None
        if tell is not None:
            tell()
            self._keeper.release()

    def last_look(self) -> None:
        """Before this process ends early: let the copy count if others tell the step."""
        if self._link.rank and self._tell is not None:
            with suppress(PeerLost, PeerFailed):  # after the last that came
                self._newest(0, _TOLD)
            if self._heard.get(0, -1) >= self._step:
                self._keeper.release()

    def _newest(self, rank: int, tag: str) -> int:
        while (message := self._link.poll(rank, tag)) is not None:
            self._heard[rank] = int(message[0])
        return self._heard.get(rank, -1)
