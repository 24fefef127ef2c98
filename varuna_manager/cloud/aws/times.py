"""A moment for each of some machines, kept over a restart of the manager."""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from varuna_manager.cloud.opening import Notes


class Times:
    """Unix seconds by node, under one key of the pool's notes; written when they change."""

    def __init__(self, notes: "Notes", key: str) -> None:
        self._notes = notes
        self._key = key

    def get(self) -> Mapping[str, float]:
        """Return the moments there are."""
        return self._kept

    def put(self, times: Mapping[str, float]) -> None:
        """Keep exactly these."""
        if times != self._kept:
            self._kept = dict(times)
            self._notes.put(self._key, json.dumps(self._kept, sort_keys=True))

    @cached_property
    def _kept(self) -> dict[str, float]:
        found: dict[str, float] = json.loads(self._notes.get(self._key) or "{}")
        return found
