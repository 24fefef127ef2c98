"""Which slots a layout may use, and where its ranks go on them."""

from collections.abc import Sequence
from dataclasses import dataclass

from varuna_manager.planner.request import PlannableNode
from varuna_runtime.spec.layout import Layout, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPool:
    """Nodes with at least `memory_bytes` per slot, each cut into units of `unit_slots` neighbouring slots.

    Ranks fill units in order, so stages of one replica are neighbours inside a node. A bigger pool only
    appends units or moves to better nodes: a layout that ran on it before runs as fast on it after.
    """

    memory_bytes: int
    unit_slots: int
    units: tuple[Slot, ...]  # first slot of each unit; nodes with more units first

    @property
    def num_slots(self) -> int:
        """Slots in whole units."""
        return len(self.units) * self.unit_slots

    def placement(self, layout: Layout) -> tuple[Slot, ...]:
        """Return the slot of each rank."""
        ranks = (divmod(rank, self.unit_slots) for rank in range(layout.world_size))
        return tuple(
            Slot(node=self.units[unit].node, index=self.units[unit].index + offset) for unit, offset in ranks
        )

    def num_nodes(self, layout: Layout) -> int:
        """Return how many nodes a layout touches."""
        return len({unit.node for unit in self.units[: -(-layout.world_size // self.unit_slots)]})

    def crosses_nodes(self, layout: Layout) -> bool:
        """Return whether ranks of the layout sit in different units."""
        return layout.world_size > self.unit_slots

    def splits(self, layout: Layout, stage: int) -> bool:
        """Return whether some replica has `stage` and the next one in different units."""
        if self.unit_slots == 1:
            return True
        replicas = range(min(layout.replicas, self.unit_slots))  # from there on the pattern repeats
        return any((layout.rank(stage=stage, replica=d) + 1) % self.unit_slots == 0 for d in replicas)


def pools(nodes: Sequence[PlannableNode], num_nodes_max: int) -> tuple[SlotPool, ...]:
    """Return the pools worth trying: every memory level with every unit size, without dominated ones."""
    levels = sorted({node.memory_bytes for node in nodes}, reverse=True)
    sizes = range(max((node.slots for node in nodes), default=0), 0, -1)
    found: list[SlotPool] = []
    for level in levels:
        roomy = [node for node in nodes if node.memory_bytes >= level]
        for size in sizes:
            pool = _pool(roomy, num_nodes_max, level, size)
            if pool.units and not any(_dominates(other, pool) for other in found):
                found.append(pool)
    return tuple(found)


def pool_for(layout: Layout, found: Sequence[SlotPool], unit_slots: int) -> SlotPool | None:
    """Return the pool with most memory that has room for the layout in units of that size."""
    roomy = (p for p in found if p.unit_slots == unit_slots and p.num_slots >= layout.world_size)
    return max(roomy, key=lambda pool: pool.memory_bytes, default=None)


def _pool(nodes: Sequence[PlannableNode], num_nodes_max: int, level: int, size: int) -> SlotPool:
    ranked = sorted(nodes, key=lambda n: (-(n.slots // size), -n.memory_bytes, n.node))[:num_nodes_max]
    return SlotPool(
        memory_bytes=level,
        unit_slots=size,
        units=tuple(
            Slot(node=node.node, index=unit * size) for node in ranked for unit in range(node.slots // size)
        ),
    )


def _dominates(better: SlotPool, worse: SlotPool) -> bool:
    return (
        better.unit_slots % worse.unit_slots == 0
        and better.memory_bytes >= worse.memory_bytes
        and better.num_slots >= worse.num_slots
    )
