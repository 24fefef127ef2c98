"""When a committed step is told: once copies of it are made, so that no worker's death takes it back.

Each rank says to rank 0 that its own copy is made. When all have, rank 0 tells the step and those before it,
and has the others do so. Copies that are held, those of the first stage, count only then: a step that nobody
was told of is not gone on from, so that none is passed over. A step of which no copy is made waits for the
next that is copied, where that may be soon; none waits longer than `LATEST_S`.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import torch

from varuna_runtime.spec.errors import PeerFailed, PeerLost
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.signals import StepDone

LATEST_S = 1.0
_MADE, _TOLD = "copy made", "step told"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Untold:
    step: int  # committed steps, this one included
    ended_s: float
    tell: Callable[[], object]
    then: Callable[[], object]


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

    def __init__(self, link: Link, world_size: int, keeper: Keeper, *, clock: Callable[[], float]) -> None:
        self._link = link
        self._others = range(1, world_size)
        self._keeper = keeper
        self._clock = clock
        self._heard: dict[int, int] = {}  # the newest step that a rank said something of
        self._untold: deque[_Untold] = deque()
        self._copied_step = -1  # the last that is copied
        self._copied_s = -LATEST_S
        self._is_open = False  # rank 0 has not told it, as far as this rank knows
        self._has_said = False  # that its copy is made
        self.is_copied = False  # the last step, on all ranks or none

    def follow(
        self, done: StepDone, tell: Callable[[], object], *, then: Callable[[], object] = lambda: None
    ) -> None:
        """Have the step told when that may be; now, where copies are rare.

        `tell` is for the script, `then` for everybody else, after the copy counts: so what others know is
        not taken back by a script that takes its time.
        """
        self.look()
        step, now_s = done.record.step + 1, self._clock()
        if done.keep:
            self._settle()
        self._untold.append(_Untold(step=step, ended_s=now_s, tell=tell, then=then))
        self.is_copied = done.keep
        if done.keep:
            self._copied_step, self._copied_s = step, now_s
            self._is_open, self._has_said = True, False
        elif now_s - self._copied_s >= LATEST_S:
            self.tell_to(step)

    def _settle(self) -> None:
        """All ranks want another copy, so all of the last are made: rank 0 told that step, or does now."""
        if not self._is_open:
            return
        if self._link.rank:
            self._is_open = False
            self._keeper.release()
        else:
            self.tell_to(self._copied_step)

    def look(self) -> bool:
        """Return whether a step was told because that may be by now."""
        if not self._untold and not self._is_open:
            return False
        newest = self._newest_that_counts()
        late = [one.step for one in self._untold if self._clock() - one.ended_s >= LATEST_S]
        return self.tell_to(max(newest, *late, -1))

    def tell_to(self, step: int) -> bool:
        """Tell what is untold up to a step, copied or not; return whether there was anything."""
        told, others = [one for one in self._untold if one.step <= step], range(0)
        for one in told:
            one.tell()
            self._untold.popleft()
        if told and self._is_open and not self._link.rank and step >= self._copied_step:
            self._is_open = False
            self._keeper.release()
            others = self._others
        for one in told:
            one.then()
        with suppress(PeerLost, PeerFailed):  # the next poll tells; what the caller has to say is said first
            for rank in others:
                self._link.send(rank, _TOLD, (torch.tensor(self._copied_step),))
        return bool(told)

    def finish(self) -> None:
        """All ranks have come to the same step and said so to each other: tell all there is."""
        self.tell_all()
        self._keeper.release()

    def tell_all(self) -> None:
        """Tell all that is untold, copied or not."""
        if self._untold:
            self.tell_to(self._untold[-1].step)

    def last_look(self) -> None:
        """Before this process ends early: let the copy count if rank 0 told the step."""
        if self._link.rank and self._is_open:
            with suppress(PeerLost, PeerFailed):  # after the last that came
                self._newest(0, _TOLD)
            if self._heard.get(0, -1) >= self._copied_step:
                self._keeper.release()

    def _newest_that_counts(self) -> int:
        """Return the newest step of which all copies are made: what rank 0 says, or found itself."""
        is_made = self._is_open and self._keeper.made_step >= self._copied_step
        if not self._link.rank:
            are_made = is_made and all(self._newest(r, _MADE) >= self._copied_step for r in self._others)
            return self._copied_step if are_made else -1
        if is_made and not self._has_said:
            self._has_said = True
            self._link.send(0, _MADE, (torch.tensor(self._copied_step),))
        newest = self._newest(0, _TOLD)
        if self._is_open and newest >= self._copied_step:
            self._is_open = False
            self._keeper.release()
        return newest

    def _newest(self, rank: int, tag: str) -> int:
        while (message := self._link.poll(rank, tag)) is not None:
            self._heard[rank] = int(message[0])
        return self._heard.get(rank, -1)
