"""Tables in narrow terminals and pipes."""

import pytest

from varuna_manager.cli.tables import table

COLUMNS = ("JOB", ">STEP", "LAYOUT", "REASON")
LONG = "no plan for 4 nodes: the pinned layout needs at least 9 slots"


def test_numbers_are_aligned_to_the_right_and_nothing_trails() -> None:
    rows = [("gpt-1", "7/300", "1x4", ""), ("a", "12/300", "", "parked")]
    assert table(COLUMNS, rows).lines(80) == (
        "JOB      STEP  LAYOUT  REASON",
        "gpt-1   7/300  1x4",
        "a      12/300          parked",
    )


def test_columns_without_any_value_are_left_out() -> None:
    assert table(COLUMNS, [("gpt-1", "", "", "")]).lines(80) == ("JOB", "gpt-1")
    assert table(COLUMNS, []).lines(80) == ("JOB  STEP  LAYOUT  REASON",)


def test_a_long_last_cell_goes_on_below_itself() -> None:
    assert table(("JOB", "REASON"), [("gpt-1", LONG)]).lines(50) == (
        "JOB    REASON",
        "gpt-1  no plan for 4 nodes: the pinned layout",
        "       needs at least 9 slots",
    )


def test_where_little_is_left_it_goes_below_the_row() -> None:
    assert table(("A LONG NAME OF A JOB", "REASON"), [("gpt-1", LONG)]).lines(40) == (
        "A LONG NAME OF A JOB  REASON",
        "gpt-1",
        "  no plan for 4 nodes: the pinned layout",
        "  needs at least 9 slots",
    )


@pytest.mark.parametrize("width", [1, 20, 40, 80, 200])
def test_names_numbers_and_words_stay_whole_at_any_width(width: int) -> None:
    sha = "a" * 64
    lines = "\n".join(table(("", "", ""), [("gpt-fa42a6", "300/300", f"weights {sha}")]).lines(width))
    assert all(word in lines for word in ("gpt-fa42a6", "300/300", sha))
