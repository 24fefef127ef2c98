"""How things are shown: numbers, times, JSON."""

import json
import math
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
from rich.console import Console

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


_UNLIMITED = 100_000  # columns


def console() -> Console:
    """Return a console on standard output; lines are never wrapped when it is not a terminal."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_UNLIMITED)


def print_json(value: object) -> None:
    """Print one JSON document; what is not a finite number becomes null."""
    click.echo(json.dumps(finite(value), indent=2))


def print_json_line(record: "DataclassInstance") -> None:
    """Print a record as one line of JSON."""
    click.echo(json.dumps(finite(asdict(record))))


def finite(value: object) -> object:
    """Return the value with NaN and infinities replaced, since JSON has none."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def seconds(value_s: float) -> str:
    """Return a duration with two useful digits, such as `850 ms`, `12 s`, `3 m 20 s`."""
    if not math.isfinite(value_s) or value_s < 0:
        return "?"
    if value_s < 10:
        return f"{value_s * 1000:.0f} ms" if value_s < 1 else f"{value_s:.1f} s"
    whole = round(value_s)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} m {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} m"


def clock(at: float) -> str:
    """Return the local time of day of a Unix time."""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%H:%M:%S")


def minute(at: float) -> str:
    """Return the local month, day and minute of a Unix time."""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%m-%d %H:%M")


def day(at: float) -> str:
    """Return the local date and time of a Unix time; empty for none."""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S") if at > 0 else ""
