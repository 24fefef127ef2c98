"""Durations and sizes as people write them."""

import click
import pytest

from varuna_manager.cli.options import Number, bytes_of, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("2m", 120), ("1h30m", 5400), ("1h2m3s", 3723), ("45", 45), ("0.5s", 0.5), ("1.5m", 90)],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "9" * 400, "30 parsecs", "-5s", "1s2m", "1:30", "."])
def test_what_is_no_duration_is_refused(text: str) -> None:
    assert seconds_of(text) is None


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("512", 512), ("2K", 2048), ("512M", 512 * 2**20), ("2GiB", 2**31), ("1.5 gb", 3 * 2**29)],
)
def test_a_size_is_read(text: str, num_bytes: int) -> None:
    assert bytes_of(text) == num_bytes


@pytest.mark.parametrize("text", ["", "M", "-1G", "9" * 400, "12 apples"])
def test_what_is_no_size_is_refused(text: str) -> None:
    assert bytes_of(text) is None


def test_a_number_is_in_its_range_and_a_number() -> None:
    assert Number(min=0).convert("0.5", None, None) == 0.5
    for text in ("nan", "inf", "-1", "much"):
        with pytest.raises(click.BadParameter):
            Number(min=0).convert(text, None, None)
