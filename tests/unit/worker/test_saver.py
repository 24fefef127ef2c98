from collections.abc import Callable

import pytest

from varuna_runtime.checkpoint.staging import Staging
from varuna_runtime.checkpoint.writer import Durable, SaveFailed
from varuna_runtime.spec.errors import StoreError
from varuna_runtime.worker.saving import SavePolicy, Saver


class FullWriter:
    """A writer whose store has no room for so many saves."""

    busy = False

    def __init__(self, num_failing: int = 1000) -> None:
        self.num_failing = num_failing
        self._news: list[Durable | SaveFailed] = []

    def begin(self, step: int, *_: object) -> Staging:
        self.num_failing -= 1
        if self.num_failing >= 0:
            self._news.append(SaveFailed(step=step, reason="rank 1 failed: no space left"))
        else:
            self._news.append(Durable(step=step, stall_s=0.0, elapsed_s=0.0))
        staging = Staging()
        staging.end()
        return staging

    def flush(self, _: float) -> bool:
        return True

    def reserve(self, _: object) -> None:
        """The memory is there."""

    def poll(self) -> tuple[Durable | SaveFailed, ...]:
        news, self._news = tuple(self._news), []
        return news


class HangingWriter(FullWriter):
    """A writer whose store never answers."""

    def flush(self, _: float) -> bool:
        return False

    def poll(self) -> tuple[Durable | SaveFailed, ...]:
        return ()


class Engine:
    step = 40

    class State:
        segments = trainer = None

    def __init__(self) -> None:
        self.waits: list[Callable[[], object]] = []

    def state(self) -> State:
        return self.State()

    def before_change(self, wait: Callable[[], object]) -> None:
        self.waits.append(wait)


class Heard:
    """A saver of one writer, and what it told."""

    def __init__(self, num_failing: int, writer: type[FullWriter] = FullWriter) -> None:
        self.engine = Engine()
        self.now_s = 0.0
        self.durable: list[int] = []
        self.failed: list[int] = []
        self.pauses: list[float] = []
        self.saver = Saver(
            self.engine,  # type: ignore[arg-type]
            writer(num_failing),  # type: ignore[arg-type]
            SavePolicy(interval_steps=5, last_step=35, last_s=0.0),
            clock=lambda: self.now_s,
            on_durable=self.durable.append,
            on_failed=lambda news: self.failed.append(news.step),
            pause=self.pauses.append,
        )


def test_a_step_that_cannot_be_saved_says_why() -> None:
    heard = Heard(num_failing=1000)
    with pytest.raises(StoreError, match="step 40 could not be saved in 3 attempts: rank 1 failed: no space"):
        heard.saver.settle(attempts=3)
    assert heard.failed == [40, 40, 40]


def test_a_store_that_is_away_for_minutes_is_waited_for() -> None:
    heard = Heard(num_failing=12)
    heard.saver.settle()
    assert heard.durable == [40]
    assert heard.pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, *[30.0] * 6]
    assert len(heard.failed) == 12


def test_the_engine_waits_for_the_copy_before_it_changes_tensors() -> None:
    heard = Heard(num_failing=0)
    heard.saver.begin()
    assert len(heard.engine.waits) == 1


def test_a_store_that_neither_answers_nor_fails_is_told_every_five_minutes() -> None:
    heard = Heard(0, HangingWriter)
    heard.saver.begin()
    for heard.now_s in range(0, 1000, 50):
        heard.saver.poll()
    assert heard.failed == [40, 40, 40]


def test_an_end_that_waits_for_such_a_store_tells_it_too() -> None:
    heard = Heard(0, HangingWriter)
    heard.saver.begin()
    heard.now_s = 301.0
    with pytest.raises(StoreError, match="step 40 is still being written"):
        heard.saver.settle(attempts=1)
    assert heard.failed == [40]
