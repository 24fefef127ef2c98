"""A mistake in a file a person wrote: where it is, what was seen, what was wanted, what to do."""

from dataclasses import dataclass

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Mark:
    """A place in a text; both count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One refusal; `str()` of it is the line a person reads."""

    source: str
    mark: Mark
    path: str  # e.g. `nodes.min`; empty for the file as a whole
    seen: str
    wanted: str
    hint: str = ""

    @property
    def line(self) -> int:
        """Line of the key, from 1."""
        return self.mark.line

    @property
    def column(self) -> int:
        """Column of the key, from 1."""
        return self.mark.column

    def __str__(self) -> str:
        """Return e.g. `job.yaml:7: batch_size: seen "yes", wanted a whole number >= 1`."""
        key = f"{self.path}: " if self.path else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{self.source}:{self.mark.line}: {key}seen {self.seen}, wanted {self.wanted}{hint}"


def dotted(path: Path) -> str:
    """Return e.g. `args[2]` or `nodes.min`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
