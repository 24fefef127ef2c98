import pytest

from varuna_runtime.checkpoint.writer import SaveFailed
from varuna_runtime.spec.errors import StoreError
from varuna_runtime.worker.saving import SavePolicy, Saver


class FullWriter:
    """A writer whose store has no room."""

    busy = False

    def __init__(self) -> None:
        self._news: list[SaveFailed] = []

    def begin(self, step: int, *_: object) -> bool:
        self._news.append(SaveFailed(step=step, reason="rank 1 failed: no space left"))
        return True

    def flush(self, _: float) -> bool:
        return True

    def poll(self) -> tuple[SaveFailed, ...]:
        news, self._news = tuple(self._news), []
        return news


class Engine:
    step = 40

    class State:
        segments = trainer = None

    def state(self) -> State:
        return self.State()


def test_a_step_that_cannot_be_saved_says_why() -> None:
    policy = SavePolicy(interval_steps=5, last_step=35, last_s=0.0)
    saver = Saver(Engine(), FullWriter(), policy, clock=lambda: 0.0, on_durable=lambda step: None)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="step 40 could not be saved in 3 attempts: rank 1 failed: no space"):
        saver.settle()
