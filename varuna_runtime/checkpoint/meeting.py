"""What the ranks tell each other about a save, as over a RecordExchange; decides nothing (torch-free)."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from varuna_runtime.checkpoint.assembly import RankRecord
from varuna_runtime.checkpoint.exchange import RecordExchange
from varuna_runtime.spec import canonical

_OUTCOMES = "checkpoint/outcomes"
_NUM_KEPT = 64  # more than any rank can be behind: the next save needs its record of the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How save number `save` of this generation ended; rank 0 says it once."""

    save: int
    failure: str  # empty: its step is durable


class Meeting:
    """One rank's view; saves are numbered alike on all ranks. Any call may raise PeerLost."""

    def __init__(self, exchange: RecordExchange, *, world_size: int) -> None:
        self._exchange = exchange
        self._world_size = world_size
        self._announced: deque[Outcome] = deque(maxlen=_NUM_KEPT)

    def report(self, save: int, record: RankRecord) -> None:
        """Tell rank 0 what this rank did for a save."""
        self._exchange.put(_key(save, record.rank), canonical.dumps(record))

    def records(self, save: int, ranks: Iterable[int]) -> dict[int, RankRecord]:
        """Return the records that are there by now, by rank."""
        found = ((rank, self._exchange.get(_key(save, rank))) for rank in ranks)
        return {rank: canonical.loads(RankRecord, value) for rank, value in found if value is not None}

    def announce(self, outcome: Outcome) -> None:
        """On rank 0: tell every rank, then drop the records of the save."""
        self._announced.append(outcome)
        self._exchange.put(_OUTCOMES, canonical.dumps(tuple(self._announced)))
        for rank in range(self._world_size):
            self._exchange.delete(_key(outcome.save, rank))

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return the latest outcomes announced, oldest first."""
        value = self._exchange.get(_OUTCOMES)
        return () if value is None else canonical.loads(tuple[Outcome, ...], value)


def _key(save: int, rank: int) -> str:
    return f"checkpoint/{save}/{rank}"
