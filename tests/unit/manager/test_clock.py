"""Time never runs backwards, not even over a restart with a clock set back."""

from varuna_manager.clock import Clock, wall_s


def test_time_is_unix_seconds() -> None:
    before = wall_s()
    assert before - 1 < Clock().now_s() < wall_s() + 1


def test_time_begins_after_what_the_journal_knows() -> None:
    future_s = wall_s() + 1e6
    clock = Clock(not_before_s=future_s)
    assert clock.now_s() >= future_s
    assert clock.now_s() <= clock.now_s()
