"""Which state a rank starts from: copies in memory where they are new enough, else what is durable.

Never initial weights where there is, or was, a durable step.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from torch import Tensor

from varuna_runtime.spec.copies import Version
from varuna_runtime.spec.errors import CheckpointRefused, CopyGone, StoreError
from varuna_runtime.spec.manifest import TrainerState
from varuna_runtime.worker.tiers import Copies

LOOK_S = 1.0  # how long vaults have to say what they hold
LOOK_AGAIN_S = 4.0  # and those that did not, once more, where committed steps would be lost without them


class Engine(Protocol):
    """What is loaded into."""

    def load_pieces(self, pieces: Iterable[Mapping[str, Tensor]], trainer: TrainerState) -> None:
        """See `engine.RankEngine`."""
        ...


class Stored(Protocol):
    """The durable steps of a job; see `resuming.Resumption`."""

    def load_newest(self, resume_step: int | None) -> int:
        """Load the newest, 0 for initial weights; CheckpointRefused, StoreError."""
        ...

    def load_step(self, step: int) -> None:
        """Load this very step; CheckpointRefused, StoreError."""
        ...

    def load_imported(self) -> None:
        """Replace initial weights by those imported, if any were; CheckpointRefused, StoreError."""
        ...

    def steps(self) -> tuple[int, ...]:
        """Return the steps that look complete, ascending; StoreError."""
        ...

    def sound_steps(self) -> tuple[int, ...]:
        """Return these up to the newest of which every byte was read and is right; StoreError."""
        ...


class Start:
    """Loads one rank's state, and knows what else it could load."""

    def __init__(self, engine: Engine, stored: Stored, copies: Copies, *, resume_step: int | None) -> None:
        """`copies` know what vaults hold; `resume_step` is the durable step that the manager knows of."""
        self._engine = engine
        self._stored = stored
        self._copies = copies
        self._resume_step = resume_step
        self.loaded = Version(step=0, generation=0)
        self.loadable: tuple[Version, ...] = ()  # newest first, `loaded` included
        self._refused: set[Version] = set()  # in memory, and of no use

    def load_newest(self) -> None:
        """Load the newest version there is; raises CheckpointRefused or StoreError when nothing can be.

        If that is step 0, nothing or only a part of something was loaded: the initial weights are for the
        caller to make.
        """
        floor = self._resume_step or 0
        for version in self._copies.versions:
            if version.step >= floor and self._take(version):
                self.loaded = version
                self.loadable = self._in_memory(floor) + self._in_store(floor)
                return
        step = self._stored.load_newest(self._resume_step)
        self.loaded = Version(step=step, generation=0)
        older = {Version(step=s, generation=0) for s in self._stored.steps() if s < step} if step else set()
        self.loadable = tuple(sorted({self.loaded, *older, *self._in_memory(floor)}, reverse=True))

    def load(self, version: Version) -> None:
        """Load this very version, which other ranks start from; CopyGone, CheckpointRefused, StoreError.

        For step 0 the caller makes an engine and has us `begin_anew`.
        """
        if version.generation:
            self._copies.load(version, self._engine.load_pieces)
        else:
            self._stored.load_step(version.step)
        self.loaded = version

    def begin_anew(self, engine: Engine, stored: Stored) -> None:
        """Go on with a new engine, at the weights that the job began with; CheckpointRefused, StoreError."""
        self._engine, self._stored = engine, stored
        stored.load_imported()
        self.loaded = Version(step=0, generation=0)

    def _take(self, version: Version) -> bool:
        try:
            self._copies.load(version, self._engine.load_pieces)
        except (CopyGone, CheckpointRefused) as err:
            print(f"varuna: step {version.step} is not loaded from memory: {err}", flush=True)  # noqa: T201
            self._refused.add(version)
            return False
        return True

    def _in_memory(self, floor: int) -> tuple[Version, ...]:
        found = (version for version in self._copies.versions if version.step >= floor)
        return tuple(version for version in found if version not in self._refused)

    def _in_store(self, floor: int) -> tuple[Version, ...]:
        """Return what is durable as far as the manager knows; if it does not say, look closely.

        What is offered here was not loaded, and whoever else starts from it has us load it, too.
        """
        if self._resume_step:
            return (Version(step=floor, generation=0),)
        try:
            steps = self._stored.sound_steps()
        except StoreError as err:
            print(f"varuna: the store was not looked at: {err}", flush=True)  # noqa: T201
            return ()
        return tuple(Version(step=step, generation=0) for step in reversed(steps or (0,)))
