"""Draws the tables of legal transitions as Markdown, as docs/manager-states.md shows them."""

from collections.abc import Mapping
from enum import StrEnum


def table(transitions: Mapping[StrEnum, frozenset[StrEnum]]) -> str:
    """Return one row per phase with the phases it may move to, in the order of the enumeration."""
    order = list(transitions)
    rows = ["| from | to |", "|---|---|"]
    for phase, targets in transitions.items():
        to = ", ".join(target for target in order if target in targets) or "(nothing: it is over)"
        rows.append(f"| {phase} | {to} |")
    return "\n".join(rows)
