"""When each peer was last heard and last told something; does no I/O and reads no clock.

Only this process's own time counts, and only the part of it in which it looked: who did not look cannot say
that nobody spoke.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

BEAT_S = 0.3
"""A peer to which nothing else was sent for this long is sent a beat."""
SILENT_S = 1.0
"""A peer of which nothing came for this long is silent: it missed three beats."""
LOOK_S = 0.1
"""How often one looks."""
_GAP_S = 0.5  # a longer one between two looks is our own absence


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one connection ever carried."""

    received: int
    queued: int  # to be sent


@dataclass(frozen=True, slots=True)
class Silence:
    """A peer that became silent, or is heard again (`silent_s` is then 0)."""

    rank: int
    silent_s: float


OnSilence = Callable[[Silence], None]


def untold(_: object) -> None:
    """Hear it for someone who does not want to know."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found."""

    due: tuple[int, ...]  # peers that are to be sent a beat
    changes: tuple[Silence, ...]


@dataclass(slots=True)
class _Peer:
    traffic: Traffic
    heard_s: float
    told_s: float
    is_silent: bool = False


class Pulse:
    """The signs of life of one rank's peers."""

    def __init__(self, peers: Iterable[int], now_s: float) -> None:
        """All of them count as heard now."""
        self._peers = {peer: _Peer(Traffic(0, 0), now_s, now_s) for peer in peers}
        self._looked_s = now_s

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time for a look."""
        return now_s - self._looked_s >= LOOK_S

    def look(self, now_s: float, traffic: Mapping[int, Traffic]) -> Look:
        """Return what is new; call it after reading what came. Peers that `traffic` lacks are forgotten."""
        is_back = now_s - self._looked_s > _GAP_S
        self._looked_s = now_s
        self._peers = {rank: peer for rank, peer in self._peers.items() if rank in traffic}
        changes, due = [], []
        for rank, peer in self._peers.items():
            seen = traffic[rank]
            if is_back:
                peer.heard_s = now_s
            changes += _heard(rank, peer, seen.received != peer.traffic.received, now_s)
            if seen.queued != peer.traffic.queued:
                peer.told_s = now_s
            elif now_s - peer.told_s >= BEAT_S:
                due.append(rank)
                peer.told_s = now_s
            peer.traffic = seen
        return Look(tuple(due), tuple(changes))


def _heard(rank: int, peer: _Peer, has_spoken: bool, now_s: float) -> list[Silence]:
    if has_spoken:
        peer.heard_s = now_s
        was_silent, peer.is_silent = peer.is_silent, False
        return [Silence(rank, 0.0)] if was_silent else []
    silent_s = now_s - peer.heard_s
    if peer.is_silent or silent_s < SILENT_S:
        return []
    peer.is_silent = True
    return [Silence(rank, silent_s)]
