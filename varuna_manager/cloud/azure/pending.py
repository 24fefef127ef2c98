"""The one write that Azure may be working on, kept in the pool's notes: a new manager follows it further."""

import json
from dataclasses import asdict, dataclass
from typing import Final, Self

from varuna_manager.cloud.azure.compute import Write
from varuna_manager.cloud.opening import Notes
from varuna_manager.cloud.provider import ProviderError, Trouble

_KEY: Final = "azure-write"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A write that was accepted; once it failed, `failure` says how and there is nothing more to follow."""

    write: Write
    deed: str  # in words, for messages
    handle: str
    failure: str = ""
    trouble: Trouble | None = None

    @classmethod
    def of(cls, notes: Notes) -> Self | None:
        """Return the one in the notes; None if there is none, or if it cannot be read."""
        text = notes.get(_KEY)
        try:
            seen = json.loads(text) if text else None
            if seen is None:
                return None
            trouble = Trouble(seen["trouble"]) if seen["trouble"] else None
            return cls(**{**seen, "write": Write(seen["write"]), "trouble": trouble})
        except (ValueError, TypeError, KeyError):
            return None  # of another version; what Azure shows of the set is enough to go on

    def failed(self, err: ProviderError) -> "Pending":
        """Return it as one that failed."""
        return Pending(write=self.write, deed=self.deed, handle="", failure=str(err), trouble=err.trouble)

    def keep(self, notes: Notes) -> None:
        """Put it into the notes, in the place of any other."""
        notes.put(_KEY, json.dumps(asdict(self)))


def forget(notes: Notes) -> None:
    """Remove it from the notes."""
    notes.remove(_KEY)
