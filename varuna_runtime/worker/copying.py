"""One rank's copies through a training: which step is kept, when older generations may go, the last one."""

from collections.abc import Callable

from varuna_runtime.worker.engine import Keeping, RankEngine
from varuna_runtime.worker.keeping import Keeper
from varuna_runtime.worker.signals import Drain, StepDone

_PUSH_S = 30.0
FIRST_AFTER_S = 1.0
"""Where a generation starts is in copies, or durable, already: only a long first step is worth one more."""


class Copying:
    """Every rank makes the same calls after the same steps."""

    def __init__(
        self,
        engine: RankEngine,
        keeper: Keeper,
        *,
        is_held: bool = False,
        before_vote: Callable[[], object] = lambda: None,
        on_kept: Callable[[int], None],
        clock: Callable[[], float],
    ) -> None:
        """Follow the training from the step that the generation starts from.

        Copies that are held wait for a `release`; see `committing`. `on_kept` gets the first step of which
        every rank's copies are complete, once.
        """
        self._is_held, self._before_vote = is_held, before_vote
        self._engine, self._keeper, self._on_kept, self._clock = engine, keeper, on_kept, clock
        self._first_step = engine.step
        self._first_state = engine.state() if engine.step else None  # until it is kept, or out of date
        self._first_due_s = clock() + FIRST_AFTER_S
        self._is_safe = False
        engine.keep_by(self._says)
        if not engine.step:
            keeper.starts()

    def _says(self) -> Keeping:
        """In a vote; after that of a step its tensors change, before all that it says has happened."""
        if not self._engine.is_evaluating:
            self._first_state = None
        self._before_vote()
        self._keeper.wait_sealed()
        return self._keeper.says

    def look(self) -> None:
        """Within a step: keep what the generation started from, if its first step takes long."""
        if self._first_state is not None and self._clock() >= self._first_due_s:
            self._keeper.begin(self._first_state)
            self._first_state = None

    def follow(self, done: StepDone) -> None:
        """Act on a committed step: keep it if all ranks do; drop what is older than this generation."""
        if done.keep:
            self._keeper.begin(is_held=self._is_held)
        if done.recoverable >= self._first_step and self._retire():
            self._on_kept(done.recoverable)

    def is_durable(self, step: int) -> None:
        """A step of this generation is durable: what is older is needed no more, wherever copies are kept."""
        if step >= self._first_step:
            self._retire()

    def _retire(self) -> bool:
        """Return whether it had not been done yet."""
        if self._is_safe:
            return False
        self._is_safe = True
        self._keeper.retire()
        return True

    def stops_in_memory(self, drain: Drain, wish: Callable[[], Drain]) -> bool:
        """Keep the committed steps, and return whether that is where they may be left; blocks.

        `wish` is what this rank is asked for by now: it may be more than when the ranks agreed on `drain`.
        """
        is_kept = self.keep_last() and drain is Drain.KEPT
        return is_kept and self._engine.all_agree(wish() is not Drain.DURABLE)

    def keep_last(self) -> bool:
        """Keep the committed steps and return whether all copies of every rank are complete; blocks."""
        is_well = self._keeper.wait_done(_PUSH_S) and self._keeper.is_able
        if self._are_kept():
            return True
        if not self._engine.all_agree(is_well):  # the last copy is whole everywhere: it may be followed
            return False
        self._keeper.try_all_buddies()
        self._keeper.begin()
        self._keeper.wait_done(_PUSH_S)
        return self._are_kept()

    def _are_kept(self) -> bool:
        return self._engine.all_agree(self._keeper.keeps(self._engine.step))
