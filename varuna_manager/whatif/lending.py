"""What a pool lends of what a recording offers. Pure functions of recordings."""

from dataclasses import dataclass

from varuna_manager.traces import Change, Recording


def lent(recording: Recording, most: int) -> Recording:
    """Return the part of the recording that a pool of at most `most` nodes holds.

    A node that is lost is replaced at once as far as the recording offers another, the longest present first.
    """
    offered: dict[str, None] = {}
    held: dict[str, None] = {}
    changes = []
    for change in recording.changes:
        for node in change.left:
            del offered[node]
        offered.update(dict.fromkeys(change.joined))
        left = tuple(node for node in change.left if node in held)
        held = {node: None for node in held if node not in left}
        joined = tuple(node for node in offered if node not in held)[: most - len(held)]
        held.update(dict.fromkeys(joined))
        if left or joined:
            changes.append(Change(at_s=change.at_s, joined=joined, left=left))
    return Recording(changes=tuple(changes), length_s=recording.length_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The nodes that are present from `start_s` to `end_s`, by name."""

    start_s: float
    end_s: float
    nodes: tuple[str, ...]


def moments(recording: Recording, end_s: float) -> tuple[Moment, ...]:
    """Return the pool between every two changes, from 0 to `end_s`."""
    present: set[str] = set()
    found: list[Moment] = []
    at_s = 0.0
    for change in recording.changes:
        until_s = min(change.at_s, end_s)
        if until_s > at_s:
            found.append(Moment(start_s=at_s, end_s=until_s, nodes=tuple(sorted(present))))
            at_s = until_s
        present = (present - set(change.left)) | set(change.joined)
    if end_s > at_s:
        found.append(Moment(start_s=at_s, end_s=end_s, nodes=tuple(sorted(present))))
    return tuple(found)
