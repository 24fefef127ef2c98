"""The ways to the nodes that keep a copy of one rank's state beside its own."""

from collections.abc import Callable
from typing import Protocol

from varuna_runtime.spec.copies import CopyRecord
from varuna_runtime.spec.errors import VarunaError, VaultLost, VaultRefused

RETRY_S = 3.0  # before a buddy that failed, or a vault that was lost, is tried again
FAULTS = (VaultLost, VaultRefused)


class Buddy(Protocol):
    """A connection to another node's vault; see `vault.client.RemoteVault`."""

    def store(self, record: CopyRecord, memory: memoryview) -> None:
        """Have it keep a copy; VaultLost, VaultRefused."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


class Line:
    """The way to one buddy: kept open, opened anew after a while when it failed."""

    def __init__(self, name: str, connect: Callable[[], Buddy], clock: Callable[[], float]) -> None:
        self._name = name
        self._connect = connect
        self._clock = clock
        self._buddy: Buddy | None = None
        self._not_before_s = 0.0
        self._is_failing = False
        self.is_refused = False  # its last answer was a no

    @property
    def is_failing(self) -> bool:
        """Whether the buddy did not keep the last copy."""
        return self._is_failing

    def store(self, record: CopyRecord, memory: memoryview) -> bool:
        """Return whether the buddy keeps the copy."""
        if self._is_failing and self._clock() < self._not_before_s:
            return False
        try:
            if self._buddy is None:
                self._buddy = self._connect()
            self._buddy.store(record, memory)
        except FAULTS as err:
            self._fail(err)
            return False
        if self._is_failing:
            print(f"varuna: node {self._name} keeps copies again", flush=True)  # noqa: T201
        self._is_failing = False
        return True

    def try_at_once(self) -> None:
        """Do not wait any longer after a failure."""
        self._not_before_s = 0.0

    def _fail(self, err: VarunaError) -> None:
        if not self._is_failing:
            print(f"varuna: node {self._name} keeps no copies: {err}", flush=True)  # noqa: T201
        if self._buddy is not None:
            self._buddy.close()
        self._buddy, self._is_failing = None, True
        self.is_refused = isinstance(err, VaultRefused)
        self._not_before_s = self._clock() + RETRY_S
