"""Names of optimizer state that one replica holds alone; any other name is of a value all replicas hold.

`optim:<name>:<state>@<start>` is a flat slice from that element of the parameter on, `optim:<name>:<state>@`
the whole value.
"""

from dataclasses import dataclass

_MARK = "@"


@dataclass(frozen=True, slots=True)
class PieceName:
    """A tensor's name in a checkpoint, taken apart."""

    whole: str  # as a replica that holds all of it would call it
    is_alone: bool
    start: int | None = None  # first element of a flat slice; None: the whole value

    def __str__(self) -> str:
        """Return the name in the checkpoint."""
        start = "" if self.start is None else str(self.start)
        return f"{self.whole}{_MARK}{start}" if self.is_alone else self.whole

    @classmethod
    def of(cls, name: str) -> "PieceName":
        """Take a name apart; the mark counts only in the state's part, which is the last."""
        owner, colon, state = name.rpartition(":")
        key, mark, start = state.partition(_MARK)
        if not mark:
            return cls(name, is_alone=False)
        return cls(f"{owner}{colon}{key}", is_alone=True, start=int(start) if start.isdecimal() else None)
