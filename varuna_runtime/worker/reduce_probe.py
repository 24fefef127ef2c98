"""Times the sums of gradients over two replicas, by the engine's own reduction; both ranks call it."""

from collections.abc import Callable

import torch

from varuna_runtime.spec.profile import ReduceCost
from varuna_runtime.worker.accumulate import Accumulator, spaces_of
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.reduce import StageReduction, Team
from varuna_runtime.worker.samples import typical
from varuna_runtime.worker.signals import receive, run

SIZES = (2**21, 2**23, 2**25)  # bytes of float32; no fewer than a block for each of the two
ROUNDS = 5
LONGEST_S = 0.4
"""No size is tried that is expected to take longer: on a slow line the smaller ones tell enough."""
_TAG = "reduce-probe"


def measure_reductions(
    link: Link, device: torch.device, *, clock: Callable[[], float], crosses_nodes: bool
) -> tuple[ReduceCost, ...]:
    """Return what sums over ranks 0 and 1 took, smallest first; only rank 0 has them, the other gets none."""
    found: list[ReduceCost] = []
    for num_bytes in SIZES:
        if not _agreed(link, go_on=not found or _next_s(found[-1], num_bytes) <= LONGEST_S):
            break
        probe = _Probe(link, device, num_bytes, clock)
        probe.seconds()  # connections and buffers warm up
        seconds = typical([probe.seconds() for _ in range(ROUNDS)])
        found.append(
            ReduceCost(replicas=2, num_bytes=num_bytes, seconds=seconds, crosses_nodes=crosses_nodes)
        )
    return tuple(found) if link.rank == 0 else ()


def _next_s(last: ReduceCost, num_bytes: int) -> float:
    return last.seconds * num_bytes / last.num_bytes


def _agreed(link: Link, *, go_on: bool) -> bool:
    """Return rank 0's word on both sides."""
    if link.rank == 0:
        link.send(1, _TAG, (torch.tensor([go_on]),))
        return go_on
    (word,) = run(receive(link, 0, _TAG), link.wait)
    return bool(word)


class _Probe:
    """One size on one rank."""

    def __init__(self, link: Link, device: torch.device, num_bytes: int, clock: Callable[[], float]) -> None:
        self._link, self._clock = link, clock
        gradient = torch.zeros(num_bytes // torch.float32.itemsize, device=device)
        (space,) = spaces_of(0, [("gradient", gradient)])
        self._gradient = gradient
        self._accumulator = Accumulator(space, device)
        team = Team(link=link, peers=(0, 1), replica=link.rank)
        self._reduction = StageReduction(team, [self._accumulator], [space.owner_ranges(2)])

    def seconds(self) -> float:
        """Sum once: from when both have their gradients until this rank has the sum."""
        mine = self._link.rank
        self._accumulator.start(2, range(mine, mine + 1))
        self._accumulator.add([self._gradient], is_last=True)
        self._accumulator.finish_leaf(mine)
        self._reduction.begin(2)
        self._meet()
        started_s = self._clock()
        run(self._reduction.finished(_nothing), self._link.wait)
        return self._clock() - started_s

    def _meet(self) -> None:
        """Return when the peer is here too."""
        peer = 1 - self._link.rank
        self._link.send(peer, _TAG, (torch.zeros(1),))
        run(receive(self._link, peer, _TAG), self._link.wait)


def _nothing(at: int, total: object) -> None:
    """Take a sum that nobody wants."""
