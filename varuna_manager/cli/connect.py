"""From `--manager`, or this machine's state home, to a client."""

import getpass
import time
from collections.abc import Callable
from typing import TypeVar

import click

from varuna_manager import clock, serving
from varuna_manager.client import Client
from varuna_manager.config import default_home
from varuna_runtime.spec.errors import InvalidInput, NoManager

_RETRY_S = 0.5

T = TypeVar("T")


def address_of(manager: str | None) -> str:
    """Return HOST:PORT of the manager meant; NoManager when none was ever started here."""
    if manager:
        return _checked(manager)
    address = last_address()
    if address is None:
        raise NoManager(
            f"no manager runs in {default_home().root}; start one with `varuna up`, "
            "or name one with --manager HOST:PORT"
        )
    return address


def _checked(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidInput(f"manager: seen {address!r}, wanted HOST:PORT, such as 127.0.0.1:7070")
    return address


def last_address() -> str | None:
    """Return the address the manager of this home serves at or, if it was killed, served at last."""
    found = serving.read(default_home())
    return None if found is None else found.address


def is_served_here(address: str) -> bool:
    """Return whether the manager at `address` is the living one of this machine's home."""
    found = serving.read(default_home())
    return found is not None and found.is_alive and found.address == address


def connect(manager: str | None) -> Client:
    """Return a client of the manager meant; close it after use."""
    return Client(address_of(manager))


def patiently(attempt: Callable[[], T], within_s: float) -> T:
    """Repeat an idempotent call while no manager answers; NoManager passes through after `within_s`."""
    give_up_at = clock.monotonic_s() + within_s
    is_told = False
    while True:
        try:
            return attempt()
        except NoManager as err:
            if clock.monotonic_s() > give_up_at:
                raise
            if not is_told:
                click.echo(f"{err}; waiting for it to come back", err=True)
                is_told = True
            time.sleep(_RETRY_S)


def user_name() -> str:
    """Return who is asking, for the event list."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
