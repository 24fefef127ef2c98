"""Where the ranks of a generation meet before and beside their process group: rank 0's key-value store."""

from datetime import timedelta

from torch._C._distributed_c10d import Store

from varuna_runtime.spec.errors import PeerLost, PlanMismatch, VarunaError
from varuna_runtime.worker.link.meeting import DidNotMeet

_LEAVE = timedelta(seconds=20)


class Rendezvous:
    """What all ranks say to each other once, under one generation's names."""

    def __init__(self, store: Store, *, rank: int, world_size: int) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size

    def gather(self, name: str, word: str) -> list[str]:
        """Return every rank's word, by rank; blocks until all have spoken.

        Raises DidNotMeet, with the ranks that did not speak before the store's timeout, and PeerLost once
        the store does not answer.
        """
        keys = [self._key(name, rank) for rank in range(self._world_size)]
        try:
            self._store.set(keys[self._rank], word)
            self._store.wait(keys)
            return [self._store.get(key).decode() for key in keys]
        except RuntimeError as err:
            raise self._absence(keys) from err

    def _absence(self, keys: list[str]) -> VarunaError:
        try:
            silent = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
        except RuntimeError as err:
            return PeerLost(0, f"its store does not answer: {err}")
        return DidNotMeet(f"{_ranks(silent)} did not come to the meeting of the generation's ranks")

    def agree(self, name: str, word: str) -> None:
        """Raise PlanMismatch unless every rank says the same."""
        words = self.gather(name, word)
        odd = [rank for rank, other in enumerate(words) if other != word]
        if odd:
            raise PlanMismatch(f"rank {self._rank} has {name} {word}, rank {odd[0]} has {words[odd[0]]}")

    def leave(self) -> None:
        """Let rank 0, which serves the store, stay until every rank is done with it."""
        self._store.set(self._key("left", self._rank), "")
        if self._rank == 0:
            self._store.wait([self._key("left", rank) for rank in range(self._world_size)], _LEAVE)

    def _key(self, name: str, rank: int) -> str:
        return f"rendezvous/{name}/{rank}"


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) != 1 else ''} {', '.join(map(str, ranks))}"
