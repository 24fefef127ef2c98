"""Waits for a store that is away, however long it takes; the process stays alive and so does its state."""

import time
from collections.abc import Callable

from varuna_runtime.spec.errors import StoreError

_FIRST_S = 0.5
_CAP_S = 20.0


def patiently(work: Callable[[], None], all_agree: Callable[[bool], bool] = bool) -> None:
    """Do `work` again and again until it raises no StoreError, on every rank if `all_agree` asks them.

    Raises whatever else it raises, and what `all_agree` does when a peer is gone.
    """
    wait_s = _FIRST_S
    while not all_agree(_is_done(work)):
        time.sleep(wait_s)
        wait_s = min(_CAP_S, 2 * wait_s)


def _is_done(work: Callable[[], None]) -> bool:
    try:
        work()
    except StoreError as err:
        print(f"varuna: the store is away, trying again: {err}", flush=True)  # noqa: T201
        return False
    return True
