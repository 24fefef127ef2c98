"""A scanner cannot fill the journal; and what was left out is counted."""

from varuna_manager.security.scarcity import Scarcity


def test_a_peer_is_told_of_a_few_times_a_minute_with_the_count_of_the_rest() -> None:
    scarce = Scarcity(per_reason=2, window_s=60.0)
    assert [scarce.line("a", "x", 0.0) for _ in range(5)] == ["x", "x", None, None, None]
    assert scarce.line("a", "x", 60.0) == "x (and 3 more times before)"
    assert scarce.line("a", "x", 61.0) == "x"


def test_one_peer_does_not_silence_another() -> None:
    scarce = Scarcity(per_reason=1)
    assert scarce.line("a", "x", 0.0) == "x"
    assert scarce.line("a", "x", 1.0) is None
    assert scarce.line("b", "x", 1.0) == "x"


def test_one_reason_does_not_hide_another_of_the_same_peer_but_varied_ids_count_as_one() -> None:
    scarce = Scarcity(per_reason=1)
    assert scarce.line("a", "unknown join ticket: it was", 0.0)
    assert scarce.line("a", "its certificate has expired", 1.0)
    whys = [f"may not speak for n{n}" for n in range(5)]
    assert [why for why in whys if scarce.line("a", why, 2.0)] == whys[:1]


def test_many_addresses_together_are_bounded_in_lines_and_in_memory() -> None:
    scarce = Scarcity(in_all=10, max_reasons=100)
    told = [scarce.line(f"10.0.{n // 256}.{n % 256}", "x", n / 1000) for n in range(5000)]
    assert sum(line is not None for line in told) == 10
    assert len(scarce._reasons) == 100
    assert scarce.line("new", "x", 100.0) == "x"
