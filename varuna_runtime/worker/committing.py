"""When a committed step is told: once its copies are made, so that no worker's death takes it back.

Each rank says to rank 0 that its own copy is made. When all have, rank 0 tells the step, and has the others
do so. Copies that are held, those of the first stage, count only then: a step that nobody was told of is not
gone on from, so that none is passed over. A step that is not copied is told at once, and none waits beyond
the end of the next.
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
        self._tell: Callable[[], object] | None = None  # the last step, while it is not told
        self._then: Callable[[], object] = lambda: None
        self._copied_step = -1  # the last that is copied
        self._is_open = False  # rank 0 has not told it, as far as this rank knows
        self._has_said = False  # that its copy is made
        self.is_copied = False  # the last step, on all ranks or none

    def follow(
        self, done: StepDone, tell: Callable[[], object], *, then: Callable[[], object] = lambda: None
    ) -> None:
        """Have the step told when that may be, now perhaps; the step before it is told now.

        `tell` is for the script, `then` for everybody else, after the copy counts: so what others know is
        not taken back by a script that takes its time.
        """
        self.tell_now()
        self._tell, self._then, self.is_copied = tell, then, done.keep
        if done.keep:
            self._copied_step, self._is_open, self._has_said = done.record.step + 1, True, False
        else:
            self.tell_now()

    def look(self) -> bool:
        """Return whether a step was told because that may be by now."""
        if not self._is_open:
            return False
        is_made = self._keeper.made_step >= self._copied_step
        if self._link.rank:
            if is_made and not self._has_said:
                self._has_said = True
                self._link.send(0, _MADE, (torch.tensor(self._copied_step),))
            return self._newest(0, _TOLD) >= self._copied_step and self._close()
        are_made = is_made and all(self._newest(r, _MADE) >= self._copied_step for r in self._others)
        return are_made and self.tell_now()

    def tell_now(self) -> bool:
        """Tell what is to be told, copied or not; return whether there was anything."""
        tell, self._tell = self._tell, None
        if tell is None:
            return False
        tell()
        if self._is_open and not self._link.rank:
            self._is_open = False
            self._keeper.release()
            for rank in self._others:
                self._link.send(rank, _TOLD, (torch.tensor(self._copied_step),))
        self._then()
        return True

    def finish(self) -> None:
        """All ranks have come to their last step, and say so to each other: tell it."""
        self.tell_now()
        self._keeper.release()

    def last_look(self) -> None:
        """Before this process ends early: let the copy count if rank 0 told the step."""
        if self._link.rank and self._is_open:
            with suppress(PeerLost, PeerFailed):  # after the last that came
                self._newest(0, _TOLD)
            if self._heard.get(0, -1) >= self._copied_step:
                self._keeper.release()

    def _close(self) -> bool:
        """On another rank than 0, once that has told the step; return whether this one had not."""
        self._is_open = False
        self._keeper.release()
        return self.tell_now()

    def _newest(self, rank: int, tag: str) -> int:
        while (message := self._link.poll(rank, tag)) is not None:
            self._heard[rank] = int(message[0])
        return self._heard.get(rank, -1)
