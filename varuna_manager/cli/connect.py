"""From `--manager`, a token, or this machine's state home to a client."""

import getpass
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from varuna_manager import clock, serving
from varuna_manager.client import Client, access_of
from varuna_manager.config import default_home, environment
from varuna_runtime.spec.errors import AccessRefused, InvalidInput, NoManager
from varuna_runtime.spec.tickets import UserToken, user_token
from varuna_runtime.wire.channels import Access, refuse_plain

_RETRY_S = 0.5
TOKEN_VARIABLE = "VARUNA_TOKEN"

T = TypeVar("T")


def address_of(manager: str | None) -> str:
    """Return HOST:PORT of the manager meant; NoManager when none is known here."""
    if manager:
        return _checked(manager)
    token, address = _remote_token(), last_address()
    if token is not None and (address is None or not is_served_here(address) or _is_from_environment()):
        return token.manager
    if address is None:
        raise NoManager(
            f"no manager runs in {default_home().root}; start one with `varuna up`, "
            "name one with --manager HOST:PORT, or store a token of one with `varuna login`"
        )
    return address


def access_to(address: str) -> Access | None:
    """Return what the manager at `address` knows us by; None: it speaks plain text, or we have no token.

    A token in the environment counts for any address. A stored one counts for its own manager only, and
    that of this machine's home is used for the manager that serves it.
    """
    token = _remote_token()
    if token is not None and (_is_from_environment() or token.manager == address):
        return access_of(token)
    found = serving.read(default_home())
    if found is not None and found.is_tls and found.address == address:
        return access_of(_token_in(default_home().admin_token))
    return None


def _remote_token() -> UserToken | None:
    """Return the token of the environment, else the one that `varuna login` stored."""
    if text := environment().get(TOKEN_VARIABLE):
        return user_token(text)
    path = default_home().login
    return _token_in(path) if path.exists() else None


def _is_from_environment() -> bool:
    return bool(environment().get(TOKEN_VARIABLE))


def _token_in(path: Path) -> UserToken:
    try:
        return user_token(path.read_text())
    except (OSError, UnicodeDecodeError) as err:
        raise AccessRefused(
            f"{path}: the token cannot be read ({err}); as another user, ask the operator for a token of "
            "your own (varuna token create --user NAME) and store it with `varuna login`"
        ) from err
    except InvalidInput as err:
        raise InvalidInput(f"{path}: {err}") from err


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
    return client_at(address_of(manager))


def client_at(address: str, *, timeout_s: float = 20.0) -> Client:
    """Return a client of the manager at `address`; close it after use."""
    access = access_to(address)
    if access is None and environment().get("VARUNA_INSECURE_PLAINTEXT") != "1":
        refuse_plain(address, "a token (`varuna login`)")
    return Client(address, timeout_s=timeout_s, access=access)


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
