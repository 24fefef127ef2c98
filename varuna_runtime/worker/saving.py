"""When to save, and one rank's saves through a training; the writing itself is `checkpoint.writer`."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from varuna_runtime.checkpoint.pacing import PRIOR_MTBF_S, SHORTEST_S, SaveCost, interval_s
from varuna_runtime.checkpoint.staging import Staging
from varuna_runtime.checkpoint.writer import CheckpointWriter, Durable, SaveFailed
from varuna_runtime.spec.errors import StoreError
from varuna_runtime.worker.engine import RankEngine

ATTEMPTS = 24  # of a save that must not fail: about ten minutes of waiting, and the store's own retries
_FLUSH_S = 60.0
_LATE_S = 300.0  # after which a save that has not ended is told as failing: a store may hang, too
_FIRST_PAUSE_S = 2.0  # between a save that failed and the next one
_LONGEST_PAUSE_S = 60.0
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0


@dataclass(slots=True, kw_only=True)
class SavePolicy:
    """Decides on rank 0 whether the step now running should be saved; all ranks then vote for it."""

    interval_steps: int | Literal["auto"]
    last_step: int
    last_s: float
    mtbf_s: float = PRIOR_MTBF_S
    wait_s: float = SHORTEST_S
    pause_s: float = 0.0  # while saves fail
    cost: SaveCost = field(default_factory=SaveCost)

    def is_due(self, *, step: int, now_s: float) -> bool:
        """`step` is the number of committed steps once the running one is committed."""
        if self.pause_s or self.interval_steps == "auto":
            wait_s = self.pause_s or self.wait_s
            if now_s - self.last_s < wait_s:
                return False
        return self.interval_steps == "auto" or step - self.last_step >= self.interval_steps

    def begun(self, *, step: int, now_s: float) -> None:
        """A save began."""
        self.last_step, self.last_s = step, now_s

    def learnt(self, saved: Durable) -> None:
        """Adapt the pace to what a save costs."""
        self.pause_s = 0.0
        self.wait_s = interval_s(cost_s=self.cost.end(), elapsed_s=saved.elapsed_s, mtbf_s=self.mtbf_s)

    def failed(self) -> None:
        """Try more and more rarely: an attempt may hold up a rank, and one that hangs holds up each."""
        self.cost.end()
        self.pause_s = min(max(_FIRST_PAUSE_S, 2.0 * self.pause_s), _LONGEST_PAUSE_S)


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
        on_failed: Callable[[SaveFailed], None] = lambda news: None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._engine = engine
        self._writer = writer
        self._policy = policy
        self._clock = clock
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._pause = pause
        self._durable_step = -1
        self._begun_step = -1
        self._polled_s: float | None = None
        self._is_saving = False
        self._late_s = 0.0  # when a save that does not end began, or was last told of
        self._last_failure = ""

    @property
    def is_due(self) -> bool:
        """Whether the running step should be saved; asked on rank 0 only."""
        step = self._engine.step + 1
        return self._policy.is_due(step=step, now_s=self._clock()) and not self._writer.busy

    def begin(self) -> None:
        """Save the committed steps in the background; the engine waits before it changes what is copied."""
        began_s = self._clock()
        state = self._engine.state()
        self._begun_step = self._engine.step
        self._policy.begun(step=self._begun_step, now_s=began_s)
        staging = self._writer.begin(self._begun_step, state.segments, state.trainer)
        self._is_saving, self._late_s = True, began_s
        self._policy.cost.stalled(self._clock() - began_s)
        if staging is not None:
            copied = staging
            self._engine.before_change(lambda: self._await(copied))

    def _await(self, staging: Staging) -> None:
        began_s = self._clock()
        staging.wait()
        self._policy.cost.stalled(self._clock() - began_s)

    def poll(self) -> None:
        """Hear of saves that ended; called after every step."""
        now_s = self._clock()
        if self._polled_s is None:
            self._writer.reserve(self._engine.state().segments)
        else:
            self._policy.cost.step(now_s - self._polled_s, is_saving=self._is_saving)
        self._polled_s = now_s
        self._hear()

    def _hear(self) -> None:
        news_of_saves = self._writer.poll()
        if not news_of_saves:
            self._tell_late()
        for news in news_of_saves:
            self._is_saving = False
            match news:
                case Durable():
                    self._durable_step = max(self._durable_step, news.step)
                    self._policy.learnt(news)
                    self._on_durable(news.step)
                case SaveFailed():
                    self._last_failure = news.reason
                    self._policy.failed()
                    self._on_failed(news)
                    print(f"varuna: step {news.step} was not saved: {news.reason}", flush=True)  # noqa: T201

    def _tell_late(self) -> None:
        """Tell, now and then, of a save that neither ends nor fails, or does not get done with tidying up."""
        if (self._is_saving or self._writer.busy) and self._clock() - self._late_s >= _LATE_S:
            late_s = self._clock() - self._policy.last_s
            self._late_s = self._clock()
            self._on_failed(
                SaveFailed(step=self._begun_step, reason=f"its save has not ended after {late_s:.0f} s")
            )

    def settle(self, attempts: int = ATTEMPTS) -> None:
        """Make the committed steps durable before returning; raises StoreError when that cannot be done.

        All ranks try equally often, with equal pauses: a store that is away for minutes is waited for.
        """
        self._flush()
        wait_s = _FIRST_WAIT_S
        for attempt in range(attempts):
            if self._durable_step == self._engine.step:
                return
            if attempt:
                self._pause(wait_s)
                wait_s = min(2.0 * wait_s, _LONGEST_WAIT_S)
            self.begin()
            self._flush()
        if self._durable_step != self._engine.step:
            step, reason = self._engine.step, self._last_failure
            raise StoreError(f"step {step} could not be saved in {attempts} attempts: {reason}")

    def _flush(self) -> None:
        is_over = self._writer.flush(_FLUSH_S)
        self._hear()
        if not is_over:
            raise StoreError(f"step {self._begun_step} is still being written")

    def close(self) -> None:
        """Let the writer's thread end."""
        self._writer.close()
