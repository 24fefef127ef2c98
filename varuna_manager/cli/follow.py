"""Following a job until it is over: events as they happen, progress in between.

It asks again and again instead of holding a stream, so a manager that is killed and started again,
at another port even, is only a pause.
"""

import contextlib
import time
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from varuna_manager import clock
from varuna_manager.cli.connect import connect, patiently
from varuna_manager.cli.output import console
from varuna_manager.cli.progress import event_line, progress_line
from varuna_manager.client import EventRecord, JobStatus

POLL_S = 0.5
PLAIN_EVERY_S = 5.0
GIVE_UP_AFTER_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one look at the job brought."""

    job: JobStatus
    events: tuple[EventRecord, ...]


def follow(job: str, manager: str | None) -> int:
    """Show the job until it is over and return its exit code; ctrl-C leaves it running."""
    screen = console()
    try:
        return _live(job, manager, screen) if screen.is_terminal else _plain(job, manager)
    except KeyboardInterrupt:
        click.echo(f"\ndetached; {job} goes on. Watch it again: varuna status {job} --watch", err=True)
        return 130


def looks(job: str, manager: str | None) -> Generator[Seen, None, None]:
    """Yield the job and its new events twice a second until it is over."""
    last_id = 0
    while True:
        seen = patiently(partial(_look, job, manager, last_id), GIVE_UP_AFTER_S)
        if seen.events:
            last_id = seen.events[-1].id
        yield seen
        if seen.job.is_over:
            return
        time.sleep(POLL_S)


def _look(job: str, manager: str | None, after: int) -> Seen:
    with connect(manager) as client:
        # The job first: an event that comes in between is then shown, not lost.
        status = client.job(job)
        return Seen(job=status, events=tuple(client.events(status.job, after=after)))


def _plain(job: str, manager: str | None) -> int:
    next_at, shown = 0.0, ""
    for seen in looks(job, manager):
        for event in seen.events:
            click.echo(event_line(event))
        line = progress_line(seen.job)
        if seen.job.is_over or (clock.monotonic_s() >= next_at and line != shown):
            click.echo(line)
            next_at, shown = clock.monotonic_s() + PLAIN_EVERY_S, line
    return _exit_code(seen.job)


def _live(job: str, manager: str | None, screen: Console) -> int:
    with (
        contextlib.closing(looks(job, manager)) as all_looks,
        Live(console=screen, auto_refresh=False) as live,
    ):
        for seen in all_looks:
            for event in seen.events:
                live.console.print(Text(event_line(event), style="dim"))
            live.update(Text(progress_line(seen.job)), refresh=True)
    return _exit_code(seen.job)


def _exit_code(job: JobStatus) -> int:
    return 0 if job.has_succeeded else 1
