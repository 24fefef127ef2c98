"""Where the ranks of a generation meet before and beside their process group: rank 0's key-value store."""

from datetime import timedelta

from torch._C._distributed_c10d import Store

from varuna_runtime.spec.errors import PlanMismatch

_LEAVE = timedelta(seconds=20)


class Rendezvous:
    """What all ranks say to each other once, under one generation's names."""

    def __init__(self, store: Store, *, rank: int, world_size: int) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size

    def gather(self, name: str, word: str) -> list[str]:
        """Return every rank's word, by rank; blocks until all have spoken."""
        self._store.set(self._key(name, self._rank), word)
        keys = [self._key(name, rank) for rank in range(self._world_size)]
        self._store.wait(keys)
        return [self._store.get(key).decode() for key in keys]

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
