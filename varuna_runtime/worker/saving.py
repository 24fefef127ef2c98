"""When to save, and one rank's saves through a training; the writing itself is `checkpoint.writer`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from varuna_runtime.checkpoint.writer import CheckpointWriter, Durable, SaveFailed
from varuna_runtime.spec.errors import StoreError
from varuna_runtime.worker.engine import RankEngine

FIRST_S = 2.0
STALL_FACTOR = 20.0  # at most 5% of the time is spent standing still for saves
ELAPSED_FACTOR = 5.0  # and a save's background work fills at most a fifth
_FLUSH_S = 600.0
_ATTEMPTS = 3


@dataclass(slots=True, kw_only=True)
class SavePolicy:
    """Decides on rank 0 whether the step now running should be saved; all ranks then vote for it."""

    interval_steps: int | Literal["auto"]
    last_step: int
    last_s: float
    wait_s: float = FIRST_S

    def is_due(self, *, step: int, now_s: float) -> bool:
        """`step` is the number of committed steps once the running one is committed."""
        if self.interval_steps == "auto":
            return now_s - self.last_s >= self.wait_s
        return step - self.last_step >= self.interval_steps

    def begun(self, *, step: int, now_s: float) -> None:
        """A save began."""
        self.last_step, self.last_s = step, now_s

    def learnt(self, saved: Durable) -> None:
        """Adapt the pace to what a save costs."""
        self.wait_s = max(FIRST_S, STALL_FACTOR * saved.stall_s, ELAPSED_FACTOR * saved.elapsed_s)


class Saver:
    """The saves of one rank; every rank makes the same calls after the same steps."""

    def __init__(
        self,
        engine: RankEngine,
        writer: CheckpointWriter,
        policy: SavePolicy,
        *,
        clock: Callable[[], float],
        on_durable: Callable[[int], None],
    ) -> None:
        self._engine = engine
        self._writer = writer
        self._policy = policy
        self._clock = clock
        self._on_durable = on_durable
        self._durable_step = -1
        self._begun_step = -1
        self._last_failure = ""

    @property
    def is_due(self) -> bool:
        """Whether the running step should be saved; asked on rank 0 only."""
        step = self._engine.step + 1
        return self._policy.is_due(step=step, now_s=self._clock()) and not self._writer.busy

    def begin(self) -> None:
        """Save the committed steps in the background."""
        state = self._engine.state()
        self._begun_step = self._engine.step
        self._policy.begun(step=self._begun_step, now_s=self._clock())
        staging = self._writer.begin(self._begun_step, state.segments, state.trainer)
        if staging is not None:
            staging.wait()

    def poll(self) -> None:
        """Hear of saves that ended."""
        for news in self._writer.poll():
            match news:
                case Durable():
                    self._durable_step = max(self._durable_step, news.step)
                    self._policy.learnt(news)
                    self._on_durable(news.step)
                case SaveFailed():
                    self._last_failure = news.reason
                    print(f"varuna: step {news.step} was not saved: {news.reason}", flush=True)  # noqa: T201

    def settle(self) -> None:
        """Make the committed steps durable before returning; raises StoreError when that cannot be done."""
        self._flush()
        for _ in range(_ATTEMPTS):
            if self._durable_step == self._engine.step:
                return
            self.begin()
            self._flush()
        if self._durable_step != self._engine.step:
            step, reason = self._engine.step, self._last_failure
            raise StoreError(f"step {step} could not be saved in {_ATTEMPTS} attempts: {reason}")

    def _flush(self) -> None:
        if not self._writer.flush(_FLUSH_S):
            raise StoreError(f"a save took longer than {_FLUSH_S:g} s")
        self.poll()

    def close(self) -> None:
        """Let the writer's thread end."""
        self._writer.close()
