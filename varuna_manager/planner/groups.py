"""Which replicas of a candidate must be simulated together, and which need not be simulated at all."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

from varuna_manager.planner.timing import OWN_LINK, Pipeline

Wires = tuple[int, int]  # of a rank's activations and of its gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Replicas that share interfaces, or one alone; equal groups take equally long."""

    micro_batches: tuple[int, ...]  # of each replica
    first_micros: tuple[int, ...]  # of each replica, in the step: what luck depends on
    wires: tuple[
        Wires, ...
    ] = ()  # of each rank, replica by replica; empty: each message on a link of its own
    seed: int | None = None
    is_ragged: bool = False  # the last micro-batch of the last replica is the step's, and a short one

    @property
    def num_micro(self) -> int:
        """Micro-batches of all replicas."""
        return sum(self.micro_batches)

    @property
    def short_micros(self) -> tuple[int, ...]:
        """Of each replica the micro-batch, in its own count, that is short; -1 where none is."""
        last = self.micro_batches[-1] - 1 if self.is_ragged else -1
        return (*(-1 for _ in self.micro_batches[1:]), last)

    def wires_of(self, rank: int) -> Wires:
        """Return the interfaces of a rank's activations and gradients."""
        return self.wires[rank] if self.wires else (OWN_LINK, OWN_LINK)


def groups(candidate: Pipeline, seed: int | None = None) -> tuple[Group, ...]:
    """Return the distinct groups; without luck, replicas with as many micro-batches are alike."""
    if not candidate.has_jitter:
        seed = None
    if seed is None and not candidate.interfaces:
        return _alone(candidate.micro_batches, candidate.is_ragged)
    shares, num_stages = candidate.micro_batches, len(candidate.stages)
    return _groups(shares, candidate.interfaces, num_stages, seed, candidate.is_ragged)


@lru_cache(maxsize=64)
def _groups(
    shares: tuple[int, ...],
    interfaces: tuple[Wires, ...],
    num_stages: int,
    seed: int | None,
    is_ragged: bool,
) -> tuple[Group, ...]:
    joined = _joined(len(shares), interfaces, num_stages)
    found = (_group(shares, interfaces, num_stages, members, seed, is_ragged) for members in joined)
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=1024)
def _alone(shares: tuple[int, ...], is_ragged: bool) -> tuple[Group, ...]:
    whole = shares[:-1] if is_ragged else shares
    last = (replace(alone(shares[-1]), is_ragged=True),) if is_ragged else ()
    return (*map(alone, sorted(set(whole))), *last)


def alone(num_micro: int) -> Group:
    """Return the group of one replica without luck."""
    return Group(micro_batches=(num_micro,), first_micros=(0,))


def whole(candidate: Pipeline, seed: int | None = None) -> Group:
    """Return all replicas as one group."""
    shares = candidate.micro_batches
    seed = seed if candidate.has_jitter else None
    members, num_stages = list(range(len(shares))), len(candidate.stages)
    return _group(shares, candidate.interfaces, num_stages, members, seed, candidate.is_ragged)


def _group(
    shares: tuple[int, ...],
    interfaces: tuple[Wires, ...],
    num_stages: int,
    members: list[int],
    seed: int | None,
    is_ragged: bool,
) -> Group:
    wires = interfaces and tuple(
        interfaces[replica * num_stages + stage] for replica in members for stage in range(num_stages)
    )
    first = (sum(shares[:replica]) for replica in members)
    return Group(
        micro_batches=tuple(shares[replica] for replica in members),
        first_micros=(0,) * len(members) if seed is None else tuple(first),
        wires=_renumbered(wires),
        seed=seed,
        is_ragged=is_ragged and members[-1] == len(shares) - 1,
    )


def _renumbered(wires: tuple[Wires, ...]) -> tuple[Wires, ...]:
    """Number the interfaces as they come, and leave out those that only one kind of message uses."""
    used = Counter(wire for pair in wires for wire in pair)
    names: dict[int, int] = {}
    for pair in wires:
        for wire in pair:
            if wire != OWN_LINK and used[wire] > 1:
                names.setdefault(wire, len(names))
    if not names:
        return ()
    return tuple((names.get(down, OWN_LINK), names.get(up, OWN_LINK)) for down, up in wires)


def _joined(replicas: int, interfaces: tuple[Wires, ...], num_stages: int) -> list[list[int]]:
    """Return the replicas that share interfaces with one another, directly or through others."""
    joined = [[replica] for replica in range(replicas)]
    at: dict[int, int] = {}  # the replica that was first on an interface
    for rank, pair in enumerate(interfaces):
        for wire in pair:
            if wire == OWN_LINK:
                continue
            first, second = joined[at.setdefault(wire, rank // num_stages)], joined[rank // num_stages]
            if first is not second:
                first += second
                for replica in second:
                    joined[replica] = first
    return [sorted(members) for replica, members in enumerate(joined) if min(members) == replica]
