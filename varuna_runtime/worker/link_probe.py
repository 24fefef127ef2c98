"""Measures the link between two ranks by ping-pong; both call it, the lower rank serves."""

from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from varuna_runtime.spec.profile import LinkCost, Profile
from varuna_runtime.worker.link import Link

TAG = "link-probe"
BULK_BYTES = 2**20
ROUNDS = 10
WARM_UP_ROUNDS = 2  # connections open lazily


def measure_link(link: Link, peer: int, *, clock: Callable[[], float]) -> LinkCost:
    """Return the cost of the link to `peer`, which calls this too; both get the lower rank's figures."""
    small, bulk = torch.zeros(1), torch.zeros(BULK_BYTES, dtype=torch.uint8)
    if link.rank > peer:
        _echo(link, peer, 2 * (ROUNDS + WARM_UP_ROUNDS))
        latency_s, bandwidth_bps = _receive(link, peer).tolist()
        return LinkCost(latency_s=latency_s, bandwidth_bps=bandwidth_bps)
    latency_s = _one_way_s(link, peer, small, clock)
    serial_s = max(_one_way_s(link, peer, bulk, clock) - latency_s, 1e-9)
    cost = LinkCost(latency_s=latency_s, bandwidth_bps=BULK_BYTES * 8 / serial_s)
    figures = torch.tensor([cost.latency_s, cost.bandwidth_bps], dtype=torch.float64)
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


def _one_way_s(link: Link, peer: int, message: Tensor, clock: Callable[[], float]) -> float:
    times: list[float] = []
    for _ in range(ROUNDS + WARM_UP_ROUNDS):
        started = clock()
        link.send(peer, TAG, (message,))
        _receive(link, peer)
        times.append((clock() - started) / 2)
    return median(times[WARM_UP_ROUNDS:])


def _echo(link: Link, peer: int, rounds: int) -> None:
    for _ in range(rounds):
        link.send(peer, TAG, (_receive(link, peer),))


def _receive(link: Link, peer: int) -> Tensor:
    while (message := link.poll(peer, TAG)) is None:
        link.wait()
    return message[0]
