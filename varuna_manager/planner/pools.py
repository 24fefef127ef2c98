"""Which slots a layout may use, and where its ranks go on them."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, groupby, islice, product, zip_longest
from math import factorial, inf, prod

from varuna_manager.planner.request import PlannableNode
from varuna_runtime.spec.layout import Layout, Slot

Rank = tuple[float, float, str]


def by_units(node: PlannableNode, unit_slots: int) -> Rank:
    """Return a key that puts nodes with more units first, of equal ones the cheaper."""
    return (-(node.slots // unit_slots), node.paid_per_hour, node.node)


def by_price(node: PlannableNode, unit_slots: int) -> Rank:
    """Return a key that puts nodes with cheaper units first, of equal ones those with more."""
    units = node.slots // unit_slots
    return (node.paid_per_hour / units, -units, node.node)


def by_fewest(node: PlannableNode, unit_slots: int) -> Rank:
    """Return a key that puts nodes with fewer units first: those of one node share its interface."""
    return (node.slots // unit_slots, node.paid_per_hour, node.node)


ORDERS_MAX = 24
"""Orders of faster and slower stages up to which all are tried, so all of up to four; of more stages only
those with the slower slots at the end and at the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPool:
    """Nodes with at least `memory_bytes` and `speed` per slot, in units of `unit_slots` neighbouring slots.

    Ranks fill units in order, so stages of one replica are neighbours inside a node. A bigger pool only
    appends units or moves to better nodes: a layout that ran on it before runs as fast on it after.
    """

    memory_bytes: int
    speed: float  # of the slowest slot
    unit_slots: int
    nodes: tuple[PlannableNode, ...]  # with at least one unit each, in the order of their use
    unit_ends: tuple[int, ...]  # how many units the nodes up to each have
    price_ends: tuple[float, ...]  # what the nodes up to each cost, dollars per hour
    is_by_speed: bool = False  # faster nodes are used first
    shares_least: bool = True  # no other order of the nodes lets fewer units share an interface
    order: tuple[int, ...] = ()
    """Which run of stages comes where in a replica, 0: the fastest; empty: all count as the slowest."""

    def __hash__(self) -> int:
        """Return a number that does not take a look at every node."""
        return hash((self.memory_bytes, self.speed, self.unit_slots, self.unit_ends[-1]))

    @property
    def num_slots(self) -> int:
        """Slots in whole units."""
        return self.unit_ends[-1] * self.unit_slots

    @property
    def top_speed(self) -> float:
        """Speed that no stage is above."""
        return self.nodes[0].speed if self.is_by_speed else self.speed

    def stage_speeds(self, layout: Layout) -> tuple[float, ...]:
        """Return for each stage the speed that all its slots have at least."""
        if not self.order:
            return (self.speed,) * layout.stages
        speeds = self.run_speeds(layout)
        return tuple(speeds[run] for run in self.order for _ in range(self.unit_slots))

    def run_speeds(self, layout: Layout) -> tuple[float, ...]:
        """Return, fastest first, the speeds of the runs of stages that are one unit in each replica."""
        ends = range(layout.replicas, layout.world_size // self.unit_slots + 1, layout.replicas)
        return tuple(self.nodes[bisect_left(self.unit_ends, end)].speed for end in ends)

    def placement(self, layout: Layout) -> tuple[Slot, ...]:
        """Return the slot of each rank; replicas go to different domains in turn."""
        if self.order:
            return self._grouped(layout)
        slots = (
            Slot(node=node.node, index=index)
            for node in _spread(self.nodes, layout.stages, self.unit_slots)
            for index in range(node.slots // self.unit_slots * self.unit_slots)
        )
        return tuple(islice(slots, layout.world_size))

    def _grouped(self, layout: Layout) -> tuple[Slot, ...]:
        """Return the slots: stages of one speed get the units next in speed, replica by replica."""
        units = (
            (node, first)
            for node in self.nodes
            for first in range(0, node.slots - self.unit_slots + 1, self.unit_slots)
        )
        runs: list[list[list[Slot]]] = [[] for _ in range(layout.replicas)]
        for _, alike in groupby(self.run_speeds(layout)):
            num_runs = len(tuple(alike))
            here: dict[PlannableNode, list[int]] = {}
            for node, first in islice(units, num_runs * layout.replicas):
                here.setdefault(node, []).append(first)
            spread = _spread(tuple(here), num_runs * self.unit_slots, self.unit_slots)
            turn = ((node.node, range(at, at + self.unit_slots)) for node in spread for at in here[node])
            for replica in runs:
                replica += [
                    [Slot(node=name, index=index) for index in indices]
                    for name, indices in islice(turn, num_runs)
                ]
        return tuple(slot for replica in runs for run in self.order for slot in replica[run])

    def num_nodes(self, layout: Layout) -> int:
        """Return how many nodes a layout touches."""
        return bisect_left(self.unit_ends, -(-layout.world_size // self.unit_slots)) + 1

    def price_per_hour(self, layout: Layout) -> float:
        """Return what the nodes cost that a layout touches, in dollars."""
        return self.price_ends[self.num_nodes(layout) - 1]

    def crosses_nodes(self, layout: Layout) -> bool:
        """Return whether ranks of the layout sit in different units."""
        return layout.world_size > self.unit_slots

    def splits(self, layout: Layout, stage: int) -> bool:
        """Return whether some replica has `stage` and the next one in different units."""
        if self.unit_slots == 1:
            return True
        replicas = range(min(layout.replicas, self.unit_slots))  # from there on the pattern repeats
        return any((layout.rank(stage=stage, replica=d) + 1) % self.unit_slots == 0 for d in replicas)

    def split_stages(self, layout: Layout) -> tuple[bool, ...]:
        """Return for each boundary between two stages whether it crosses units."""
        return tuple(self.splits(layout, stage) for stage in range(layout.stages - 1))


def pools(
    nodes: Sequence[PlannableNode],
    num_nodes_max: int,
    rank: Callable[[PlannableNode, int], Rank] = by_units,
    dearest: Sequence[float] = (inf,),
) -> tuple[SlotPool, ...]:
    """Return the pools worth trying: every memory and speed with every unit size, without dominated ones.

    Each is tried without the nodes above each of the prices `dearest`: cheap slots of a large node are dear
    to a layout that needs few of them.
    """
    memories = sorted({node.memory_bytes for node in nodes}, reverse=True)
    speeds = sorted({node.speed for node in nodes}, reverse=True)
    sizes = range(max((node.slots for node in nodes), default=0), 0, -1)
    found: list[SlotPool] = []
    by_speed: list[SlotPool] = []
    for memory, speed, price in product(memories, speeds, dearest):
        good = [
            n for n in nodes if n.memory_bytes >= memory and n.speed >= speed and n.paid_per_hour <= price
        ]
        for size in sizes:
            large = [n for n in good if n.slots >= size]
            for pool in _in_each_order(large, num_nodes_max, rank, memory, speed, size):
                if (sorted_ := _by_speed(pool)) is not None:
                    by_speed.append(sorted_)
                if not any(_dominates(other, pool) for other in found):
                    found.append(pool)
    return (*found, *by_speed)


def pools_for(layout: Layout, found: Sequence[SlotPool]) -> tuple[SlotPool, ...]:
    """Return the pools with room for the layout: by unit size, speeds and price the one with most memory.

    Of those that time and cost alike only the one that touches fewest nodes.
    """

    def name_of(pool: SlotPool) -> tuple[object, ...]:
        speeds = pool.stage_speeds(layout) if pool.order else pool.speed
        # Where a replica crosses units, more nodes mean fewer units at an interface.
        spread = pool.num_nodes(layout) if pool.unit_slots % layout.stages else 0
        return speeds, pool.price_per_hour(layout), spread

    roomy: dict[tuple[object, ...], SlotPool] = {}
    roomy_enough = (pool for pool in found if pool.num_slots >= layout.world_size)
    for pool in chain.from_iterable(_ordered(one, layout) for one in roomy_enough):
        name = pool.unit_slots, *name_of(pool)
        if name not in roomy or pool.memory_bytes > roomy[name].memory_bytes:
            roomy[name] = pool
    alike: dict[tuple[object, ...], SlotPool] = {}
    for pool in sorted(roomy.values(), key=lambda one: (one.num_nodes(layout), -one.unit_slots)):
        crosses, splits = pool.crosses_nodes(layout), pool.split_stages(layout)
        alike.setdefault((*name_of(pool), pool.memory_bytes, crosses, splits), pool)
    return tuple(alike.values())


def _in_each_order(
    nodes: Sequence[PlannableNode],
    num_nodes_max: int,
    rank: Callable[[PlannableNode, int], Rank],
    memory_bytes: int,
    speed: float,
    size: int,
) -> Iterator[SlotPool]:
    """Yield the pool in order of `rank`, and the one that shares interfaces least if that is another."""
    has_one = len({node.slots // size for node in nodes}) == 1
    for key in (rank,) if has_one else (rank, by_fewest):
        chosen = _ranked(nodes, key, size)[:num_nodes_max]
        pool = _pool(chosen, memory_bytes, speed, size)
        if pool is not None:
            yield replace(pool, shares_least=has_one or key is by_fewest)


def _ranked(
    nodes: Sequence[PlannableNode], rank: Callable[[PlannableNode, int], Rank], size: int
) -> list[PlannableNode]:
    return sorted(nodes, key=lambda node: rank(node, size))


def _pool(nodes: Sequence[PlannableNode], memory_bytes: int, speed: float, size: int) -> SlotPool | None:
    if not nodes:
        return None
    return SlotPool(
        memory_bytes=memory_bytes,
        speed=speed,
        unit_slots=size,
        nodes=tuple(nodes),
        unit_ends=tuple(accumulate(node.slots // size for node in nodes)),
        price_ends=tuple(accumulate(node.paid_per_hour for node in nodes)),
    )


def _ordered(pool: SlotPool, layout: Layout) -> Iterator[SlotPool]:
    """Yield the pool, or one sorted by speed with each order of stages that is worth a try."""
    if not pool.is_by_speed:
        yield pool
        return
    if layout.stages % pool.unit_slots:
        return
    speeds = pool.run_speeds(layout)
    alike = (len(tuple(same)) for _, same in groupby(speeds))
    num_orders = factorial(len(speeds)) // prod(map(factorial, alike))
    if num_orders == 1:
        return
    runs = tuple(range(len(speeds)))
    orders = _orders(runs, speeds) if num_orders <= ORDERS_MAX else (runs, runs[::-1])
    for order in orders:
        yield replace(pool, order=order)


def _orders(runs: tuple[int, ...], speeds: Sequence[float]) -> Iterator[tuple[int, ...]]:
    """Yield every order of the runs, but for those that equal speeds make alike."""
    if not runs:
        yield ()
    for first in {speeds[run]: run for run in reversed(runs)}.values():
        rest = tuple(run for run in runs if run != first)
        yield from ((first, *others) for others in _orders(rest, speeds))


def _by_speed(pool: SlotPool) -> SlotPool | None:
    """Return a pool with the same nodes, the faster ones first; None where all are as fast."""
    if all(node.speed == pool.speed for node in pool.nodes):
        return None
    nodes = sorted(pool.nodes, key=lambda node: -node.speed)
    by_speed = _pool(nodes, pool.memory_bytes, pool.speed, pool.unit_slots)
    return by_speed and replace(by_speed, is_by_speed=True)


def _dominates(better: SlotPool, worse: SlotPool) -> bool:
    return (
        better.unit_slots % worse.unit_slots == 0
        and (better.shares_least or not worse.shares_least)
        and better.memory_bytes >= worse.memory_bytes
        and better.speed >= worse.speed
        and better.num_slots >= worse.num_slots
        and all(a <= b for a, b in zip(better.price_ends, worse.price_ends, strict=False))
    )


def _spread(nodes: Sequence[PlannableNode], num_stages: int, unit_slots: int) -> Iterator[PlannableNode]:
    """Return the nodes with as many as a replica takes from one domain, then from the next.

    Only nodes that are equal for the layout change places.
    """
    for (units, _), equal in groupby(nodes, key=lambda n: (n.slots // unit_slots, n.paid_per_hour)):
        domains: dict[str, list[PlannableNode]] = {}
        for node in equal:
            domains.setdefault(node.domain, []).append(node)
        size = -(-num_stages // (units * unit_slots))
        runs = [
            [members[i : i + size] for i in range(0, len(members), size)]
            for _, members in sorted(domains.items())
        ]
        turns = [run for turn in zip_longest(*runs) for run in turn if run is not None]
        for run in sorted(turns, key=lambda one: len(one) < size):
            yield from run
