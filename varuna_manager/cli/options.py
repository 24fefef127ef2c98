"""Options that several commands share, and the ways people write durations and sizes."""

import re
from collections.abc import Callable
from math import isfinite
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_DURATION = re.compile(r"(?:([0-9]+(?:\.[0-9]+)?)h)?(?:([0-9]+(?:\.[0-9]+)?)m)?(?:([0-9]+(?:\.[0-9]+)?)s?)?")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


class Number(click.FloatRange):
    """A range of numbers; FloatRange alone lets `nan` and, without an upper end, `inf` through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or refuse what is none."""
        found = float(super().convert(value, param, ctx))
        if not isfinite(found):
            self.fail(f"seen {value!r}, wanted a number", param, ctx)
        return found


def as_seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Option callback: `30s`, `2m`, `1h30m`, or plain seconds."""
    if value is None:
        return None
    seconds = seconds_of(value)
    if seconds is None:
        raise click.BadParameter(f"seen {value!r}, wanted a duration such as 30s, 2m or 1h30m", ctx, param)
    return seconds


def as_bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Option callback: `512M`, `2GiB`, or plain bytes; powers of 1024."""
    if value is None:
        return None
    num_bytes = bytes_of(value)
    if not num_bytes:
        raise click.BadParameter(f"seen {value!r}, wanted a size such as 512M or 2G", ctx, param)
    return num_bytes


def as_bytes_or_zero(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Option callback: as `as_bytes`, and `0` for nothing."""
    return 0 if value == "0" else as_bytes(ctx, param, value)


def seconds_of(text: str) -> float | None:
    """Return the seconds of a duration as people write it, or None."""
    found = _DURATION.fullmatch(text.strip())
    if not text.strip() or found is None:
        return None
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    total_s = hours * 3600 + minutes * 60 + seconds
    return total_s if isfinite(total_s) else None


def bytes_of(text: str) -> int | None:
    """Return the bytes of a size as people write it, or None."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    num_bytes = float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ")
    return int(num_bytes) if isfinite(num_bytes) else None


def examples(*commands: str) -> str:
    """Return the end of a command's help."""
    return "\b\n" + "\n".join([f"Example{'s' * (len(commands) > 1)}:", *(f"  {line}" for line in commands)])


def manager_option(command: F) -> F:
    """Add `--manager`; None means the manager of this machine's home."""
    return click.option(
        "--manager",
        envvar="VARUNA_MANAGER",
        metavar="HOST:PORT",
        help="Address of the manager; default: $VARUNA_MANAGER, else the one that `varuna up` started.",
    )(command)


def json_option(command: F) -> F:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(command)


def follow_option(help_text: str) -> Callable[[F], F]:
    """Add `-f/--follow`."""
    return click.option("-f", "--follow", is_flag=True, help=help_text)
