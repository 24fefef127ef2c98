"""Measures the link between two ranks; both call it, the lower rank asks.

Small messages go there and back for the latency, bulk in both directions at once, as two stages exchange it:
a line that is busy in one direction carries less in the other.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from varuna_runtime.spec.profile import LinkCost, Profile
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.link_fit import link_cost

TAG = "link-probe"
SMALL_BYTES = 1
BULK_BYTES = (2**18, 2**20, 2**22)  # above what a shaped line lets pass at once
ROUNDS = 10
WARM_UP_ROUNDS = 2  # connections open lazily
LONGEST_S = 0.1
"""A message that takes longer is the last size: on a slow line it tells enough."""
_END = -1


def measure_link(link: Link, peer: int, *, clock: Callable[[], float]) -> LinkCost:
    """Return the cost of the link to `peer`, which calls this too; both get the lower rank's figures."""
    if link.rank > peer:
        _answer(link, peer, clock)
        latency_s, bandwidth_bps, *late_s = _receive(link, peer)[0].tolist()
        return LinkCost(latency_s=latency_s, bandwidth_bps=bandwidth_bps, late_s=tuple(late_s))
    asker = _Asker(link, peer, clock)
    small = [there_and_back_s / 2 for there_and_back_s in asker.small()]
    cost = link_cost(small, asker.bulk(min(small)))
    _ask(link, peer, _END)
    figures = torch.tensor([cost.latency_s, cost.bandwidth_bps, *cost.late_s], dtype=torch.float64)
    link.send(peer, TAG, (figures,))
    return cost


def with_link(profile: Profile, cost: LinkCost, *, measured_on: str) -> Profile:
    """Return the profile with a measured link between nodes; inside a node it is at least as good."""
    guess = profile.same_node
    same_node = LinkCost(
        latency_s=min(guess.latency_s, cost.latency_s),
        bandwidth_bps=max(guess.bandwidth_bps, cost.bandwidth_bps),
    )
    return replace(profile, cross_node=cost, same_node=same_node, measured_on=measured_on)


def with_inner_link(profile: Profile, cost: LinkCost, *, node: str) -> Profile:
    """Return the profile with a measured link inside a node; between nodes it is at most as good."""
    guess = profile.cross_node
    cross_node = LinkCost(
        latency_s=max(guess.latency_s, cost.latency_s),
        bandwidth_bps=min(guess.bandwidth_bps, cost.bandwidth_bps),
    )
    measured_on = f"{node} (links between nodes guessed)"
    return replace(profile, same_node=cost, cross_node=cross_node, measured_on=measured_on)


class _Asker:
    """Times messages, each once the one before it was answered."""

    def __init__(self, link: Link, peer: int, clock: Callable[[], float]) -> None:
        self._link, self._peer, self._clock = link, peer, clock

    def small(self) -> list[float]:
        """Return how long a small message and its answer took, each time."""
        times: list[float] = []
        for _ in range(ROUNDS + WARM_UP_ROUNDS):
            started = self._clock()
            _ask(self._link, self._peer, SMALL_BYTES)
            _receive(self._link, self._peer)
            times.append(self._clock() - started)
        return times[WARM_UP_ROUNDS:]

    def bulk(self, latency_s: float) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
        """Return one-way times by bytes, to the peer and from it, where a small message takes `latency_s`."""
        there: dict[int, list[float]] = {}
        back: dict[int, list[float]] = {}
        for num_bytes in BULK_BYTES:
            times = [self._exchange(num_bytes, latency_s) for _ in range(ROUNDS + WARM_UP_ROUNDS)]
            there[num_bytes], back[num_bytes] = map(list, zip(*times[WARM_UP_ROUNDS:], strict=True))
            if min(there[num_bytes] + back[num_bytes]) > LONGEST_S:
                break
        return there, back

    def _exchange(self, num_bytes: int, latency_s: float) -> tuple[float, float]:
        """Return the times of two messages that crossed; the peer's left when it heard of ours."""
        started = self._clock()
        _ask(self._link, self._peer, num_bytes)
        self._link.send(self._peer, TAG, (_payload(num_bytes),))
        _receive(self._link, self._peer)
        back_s = self._clock() - started - latency_s
        (there_s,) = _receive(self._link, self._peer)
        return float(there_s) + latency_s, back_s


def _ask(link: Link, peer: int, answer_bytes: int) -> None:
    link.send(peer, TAG, (torch.tensor([answer_bytes]),))


def _answer(link: Link, peer: int, clock: Callable[[], float]) -> None:
    while (answer_bytes := int(_receive(link, peer)[0])) != _END:
        started = clock()
        link.send(peer, TAG, (_payload(answer_bytes),))
        if answer_bytes > SMALL_BYTES:
            _receive(link, peer)
            link.send(peer, TAG, (torch.tensor([clock() - started], dtype=torch.float64),))


def _payload(num_bytes: int) -> Tensor:
    return torch.zeros(num_bytes, dtype=torch.uint8)


def _receive(link: Link, peer: int) -> tuple[Tensor, ...]:
    while (message := link.poll(peer, TAG)) is None:
        link.wait()
    return message
