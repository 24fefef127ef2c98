"""Asking for more: which pool is raised to what. Every raise rests on a reading of this very pass."""

import math
from dataclasses import dataclass

from varuna_manager.core.words import What, counted
from varuna_manager.sizing.course import Course
from varuna_manager.sizing.decisions import GiveUp, Grow
from varuna_manager.sizing.demand import Demand
from varuna_manager.sizing.supply import Supply, block, unknown

UNPRICED = "max_price is set and its price is unknown; give `price` in its settings"
_AGAIN_S = 60.0  # between two calls to give the same thing up


@dataclass(slots=True, kw_only=True)
class _Purse:
    """What may still be spent, in dollars per hour; no limit: None."""

    left: float | None

    def affordable(self, num_nodes: int, price: float | None) -> int:
        if self.left is None:
            return num_nodes
        if price is None:
            return 0
        return num_nodes if price <= 0 else min(num_nodes, math.floor(self.left / price + 1e-9))

    def spend(self, num_nodes: int, price: float | None) -> None:
        if self.left is not None and price is not None:
            self.left = max(0.0, self.left - num_nodes * price)


def limit(course: Course, wanted: Demand) -> float | None:
    """Return the dollars per hour that all nodes together may cost; None: any."""
    limits = [price for price in (course.sizing.max_price, wanted.max_price) if price is not None]
    return min(limits, default=None)


def reachable(course: Course, found: tuple[Supply, ...], wanted: Demand) -> int:
    """Return how many nodes the pools could ever have together within their bounds and the budget."""
    purse = _Purse(left=limit(course, wanted))
    num_nodes = 0
    for supply in found:
        most = max(purse.affordable(supply.cap, supply.price), len(supply.live))
        purse.spend(most, supply.price)
        num_nodes += most
    return num_nodes


def affordable(course: Course, found: tuple[Supply, ...], wanted: Demand) -> int:
    """Return how many of the machines there are fit in the budget, the pools in the order of their use."""
    purse = _Purse(left=limit(course, wanted))
    num_nodes = 0
    for supply in found:
        here = supply.count if supply.price is None else purse.affordable(supply.count, supply.price)
        purse.spend(here, supply.price)
        num_nodes += here
    return num_nodes


def grow(course: Course, found: tuple[Supply, ...], wanted: Demand, num_missing: int) -> None:
    """Ask the pools in order for what is missing; each gives what it can, the next one the rest.

    `num_missing` may be negative. A pool below its own minimum grows without any demand.
    """
    waits_for = ", ".join(unknown(course, wanted))
    total = limit(course, wanted)
    spent = sum((s.price or 0.0) * s.num_paid for s in found)
    purse = _Purse(left=None if total is None else max(0.0, total - spent))
    for supply in found:
        reason = f"waits for the first reading of {waits_for}" if waits_for else block(course, supply, wanted)
        take, reason = (0, reason) if reason else _take(supply, num_missing, purse)
        num_missing -= take
        purse.spend(take, supply.price)
        course.remember(supply.rules, wanted=supply.count + take, limit=reason)
        if take and _may_raise(course, supply):
            _raise(course, supply, supply.target + take)


def _take(supply: Supply, num_missing: int, purse: _Purse) -> tuple[int, str]:
    """Return how many machines the pool is to have more, and why it is not more."""
    below = supply.floor - supply.target
    need = max(below, num_missing, 0)
    room = max(0, supply.cap - supply.target)
    if need == 0:
        return 0, ""
    if room == 0:
        return 0, f"it has its most, {supply.cap}"
    take = min(need, room)
    if supply.pool.step is not None:
        take = min(take, supply.pool.step)
    paid = purse.affordable(take, supply.price)
    if paid < take and supply.price is None:
        return 0, UNPRICED
    if paid < take:
        return paid, f"max_price allows no more at {supply.price:g} dollars per hour of a node"
    return take, ""


def _may_raise(course: Course, supply: Supply) -> bool:
    """A provider that is replacing or still delivering needs no higher target yet."""
    reading = supply.reading
    is_writing = reading.is_writing or any(write.pool == supply.rules.pool for write in course.writes)
    there = len(supply.live) + sum(course.is_doomed(machine) for machine in reading.instances)
    return supply.is_fresh and not is_writing and reading.desired <= there


def _raise(course: Course, supply: Supply, desired: int) -> None:
    num_new = desired - supply.target
    why = f"{counted(num_new, 'node')} more, {desired} in all"
    course.writes.append(Grow(pool=supply.rules.pool, desired=desired, why=why))
    course.remember(supply.rules, asked=desired, asked_s=course.now_s)
    if not supply.pool.is_write_failing:  # the same words again with each try would bury the rest
        course.tell(supply.rules, What.POOL_GROWS, why)


def give_up(course: Course, found: tuple[Supply, ...], num_surplus: int) -> None:
    """Take back what was asked for and did not come, where it is short or no longer wanted."""
    for supply in found:
        reading, pool = supply.reading, supply.pool
        lacking = reading.desired - len(supply.live)
        if not supply.is_fresh or reading.is_writing or lacking <= 0 or not _may_give_up(course, supply):
            continue
        since_s = pool.lacking_since_s
        is_old = since_s is not None and since_s < course.now_s  # a machine may be there before it is listed
        is_short = course.now_s < pool.retry_at_s
        if is_short or (num_surplus >= 0 and is_old and len(supply.live) >= supply.floor):
            why = pool.short if is_short else "no job needs them"
            course.writes.append(GiveUp(pool=supply.rules.pool, why=why))
            if "" not in pool.tried:
                words = f"{counted(lacking, 'node')} that did not come: {why}"
                course.tell(supply.rules, What.POOL_GIVES_UP, words)
            course.remember(supply.rules, asked=None, tried={**pool.tried, "": course.now_s})


def _may_give_up(course: Course, supply: Supply) -> bool:
    last_s = supply.pool.tried.get("")
    return last_s is None or course.now_s - last_s >= _AGAIN_S
