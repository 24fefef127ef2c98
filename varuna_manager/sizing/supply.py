"""What each pool has and could give, seen from the demand."""

from collections.abc import Iterator
from dataclasses import dataclass

from varuna_manager.cloud.provider import Instance, InstancePhase, PoolReading, Trouble
from varuna_manager.core.phases import NodePhase
from varuna_manager.sizing.course import Course
from varuna_manager.sizing.demand import Demand
from varuna_manager.sizing.memory import PoolMemory
from varuna_manager.sizing.settings import Rules
from varuna_manager.sizing.shortages import settle_s

_NEEDS_A_PERSON = frozenset({Trouble.AUTH, Trouble.CONFIG})


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """One sized pool."""

    rules: Rules
    pool: PoolMemory
    reading: PoolReading
    live: tuple[Instance, ...]  # run or boot, and are to stay
    num_unfit: int  # of them, joined with another kind of device than the job is pinned to
    num_coming: int  # asked for and not listed yet
    num_owed: int  # its target is above what lives, though nothing may be expected of a pool that is short
    price: float | None
    is_fresh: bool

    @property
    def count(self) -> int:
        """Nodes that meet the demand, here or on their way."""
        return len(self.live) - self.num_unfit + self.num_coming

    @property
    def target(self) -> int:
        """What the provider has been told to have, or has."""
        return max(self.reading.desired, len(self.live) + self.num_coming)

    @property
    def num_paid(self) -> int:
        """Machines that cost money now or may at any time, also those that are being ended."""
        ends = {InstancePhase.STOPPED, InstancePhase.GONE}
        there = sum(m.phase not in ends for m in self.reading.instances)
        return there + max(self.num_coming, self.num_owed)

    @property
    def floor(self) -> int:
        """Machines that stay whatever the demand."""
        return min(max(self.rules.min, self.reading.least), self.cap)

    @property
    def cap(self) -> int:
        """Most machines there may be."""
        return max(0, min(self.rules.max, self.reading.most))


def supplies(course: Course, wanted: Demand) -> tuple[Supply, ...]:
    """Return the sized pools that were ever read, in the order of their use."""
    found = [
        _supply(course, rules, course.pool(rules), reading, wanted)
        for rules in course.settings.rules
        if rules.is_sized and (reading := course.pool(rules).reading) is not None
    ]
    if course.sizing.policy == "cheapest":
        found.sort(key=lambda s: (s.price is None, s.price or 0.0))
    return tuple(found)


def _supply(course: Course, rules: Rules, pool: PoolMemory, reading: PoolReading, wanted: Demand) -> Supply:
    live = tuple(m for m in reading.instances if course.is_living(m))
    joined = [node for m in live if (node := course.node(m.node)) is not None]
    owed = max(0, reading.desired - _num_ending(course, reading) - len(live))
    return Supply(
        rules=rules,
        pool=pool,
        reading=reading,
        live=live,
        num_unfit=sum(wanted.is_unfit(node) for node in joined),
        num_coming=_num_coming(course, rules, pool, reading, len(live), owed),
        num_owed=owed,
        price=reading.price if rules.price is None else rules.price,
        is_fresh=rules.pool in course.fresh,
    )


def _num_coming(
    course: Course, rules: Rules, pool: PoolMemory, reading: PoolReading, num_live: int, num_owed: int
) -> int:
    """Count what the provider still owes; of a pool that is short nothing is expected."""
    if course.now_s < pool.retry_at_s:
        return 0
    is_settling = reading.is_writing or course.now_s - pool.asked_s < settle_s(rules)
    asked = pool.asked if pool.asked is not None and is_settling else 0
    return max(num_owed, asked - num_live)


def _num_ending(course: Course, reading: PoolReading) -> int:
    """Count the machines that are being ended and that the provider's own target may still include."""
    return sum(
        m.node in course.state.ending and not m.is_stray and m.phase is not InstancePhase.GONE
        for m in reading.instances
    )


def num_others(course: Course, wanted: Demand) -> int:
    """Count the nodes that can work for the demand and that no sized pool lists."""
    pools = [course.pool(rules) for rules in course.settings.rules]
    gone = {name for pool in pools for name in pool.gone}
    listed = {
        name for rules in course.settings.rules if rules.is_sized for name in course.pool(rules).machines
    }
    return sum(
        node.phase in {NodePhase.READY, NodePhase.DISCONNECTED}
        and node.node not in listed
        and node.node not in gone
        and node.node not in course.state.ending
        and not wanted.is_unfit(node)
        for node in course.state.nodes.values()
    )


def unknown(course: Course, wanted: Demand) -> Iterator[str]:
    """Yield the sized pools of which nothing is known yet, and whose answer is only a matter of time.

    What booted there when the manager started has joined after the boot timeout, or never will: from then
    on its nodes count without an answer. What they cost is not known without one, so a budget waits on.
    """
    is_limited = course.sizing.max_price is not None or wanted.max_price is not None
    for rules in course.settings.rules:
        pool = course.pool(rules)
        needs_a_person = pool.failed is not None and pool.failed.trouble in _NEEDS_A_PERSON
        since_s = course.now_s if pool.failing_since_s is None else pool.failing_since_s
        is_over = not is_limited and course.now_s - since_s >= course.sizing.boot_timeout_s
        if rules.is_sized and pool.reading is None and not (needs_a_person or is_over):
            yield rules.pool


def block(course: Course, supply: Supply, wanted: Demand) -> str:
    """Return why the pool cannot be asked for more now, or an empty text."""
    pool, sizing = supply.pool, course.sizing
    if course.now_s < pool.retry_at_s:
        return pool.short or "it is left alone for a while"
    failed, since_s = pool.failed, pool.failing_since_s
    if failed is not None and since_s is not None:
        is_long = course.now_s - since_s >= sizing.backoff_s
        if failed.trouble in _NEEDS_A_PERSON or is_long:
            return f"{failed.trouble}: {failed.message}"
    if wanted.is_unfit_kind(pool.kind):
        kind = wanted.job.device_kind if wanted.job else ""
        return (
            f"its nodes are {pool.kind}, and job {wanted.job.job if wanted.job else ''} is pinned to {kind}"
        )
    return ""
