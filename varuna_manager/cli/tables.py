"""Tables that stay readable in a narrow terminal and in a pipe."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from varuna_manager.cli.plain import plain

_GAP = "  "
_NARROWEST = 30  # columns worth wrapping into


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a bold header. Only the last column is ever wrapped: a name or a number stays whole."""

    columns: tuple[str, ...]  # one that begins with `>` is aligned to the right
    rows: tuple[tuple[str, ...], ...]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> RenderResult:
        """Lay the table out for the width at hand."""
        header, *body = self.lines(options.max_width)
        if header:
            yield Text(header, style="bold", no_wrap=True, overflow="ignore")
        for line in body:
            yield Text(line, no_wrap=True, overflow="ignore")

    def lines(self, width: int) -> tuple[str, ...]:
        """Return the header, empty without titles, and the lines of the rows.

        A last cell too long for what is left of `width` goes on below itself, or below its row where
        little is left.
        """
        titles = tuple(column.removeprefix(">") for column in self.columns)
        inner = [max(len(cell) for cell in column) for column in zip(titles, *self.rows, strict=True)][:-1]
        left = width - sum(inner) - len(_GAP) * len(inner)
        return (
            (self._fixed(titles, inner) + titles[-1]).rstrip(),
            *(
                line
                for row in self.rows
                for line in _with_last(self._fixed(row, inner), row[-1], left, width)
            ),
        )

    def _fixed(self, cells: tuple[str, ...], widths: Sequence[int]) -> str:
        padded = (
            cell.rjust(width) if column.startswith(">") else cell.ljust(width)
            for column, cell, width in zip(self.columns, cells, widths, strict=False)
        )
        return "".join(cell + _GAP for cell in padded)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a plain table; columns that are empty in all rows are left out."""
    cells = [tuple(plain(str(cell)) for cell in row) for row in rows]
    used = [i for i in range(len(columns)) if not cells or any(row[i] for row in cells)]
    return Table(tuple(columns[i] for i in used), tuple(tuple(row[i] for i in used) for row in cells))


def _with_last(fixed: str, last: str, left: int, width: int) -> Iterator[str]:
    if len(last) <= left:
        yield (fixed + last).rstrip()
        return
    indent = len(fixed) if left >= _NARROWEST else len(_GAP)
    first, *others = textwrap.wrap(last, max(width - indent, _NARROWEST), break_long_words=False)
    if left >= _NARROWEST:
        yield fixed + first
    else:
        yield from (fixed.rstrip(), " " * indent + first)
    for line in others:
        yield " " * indent + line
