"""Ending machines: idle ones beyond the demand, and those that are of no use. Never one with work."""

from collections.abc import Iterator
from dataclasses import replace

from varuna_manager.cloud.provider import Instance, InstancePhase, PoolReading
from varuna_manager.core.phases import NodePhase
from varuna_manager.core.state import Warmth
from varuna_manager.core.words import What
from varuna_manager.sizing import shortages
from varuna_manager.sizing.course import Course
from varuna_manager.sizing.decisions import LetGo, Release
from varuna_manager.sizing.demand import Demand
from varuna_manager.sizing.settings import Rules
from varuna_manager.sizing.supply import Supply

_LEAVE_S = 5.0  # an agent told to leave has this long before its machine ends
_RETRY_S = 60.0  # a call to end a machine is repeated after this while the machine is still there
_STUCK_S = 300.0  # ... and told to a person after this
_WATCHED_S = 60.0  # nothing is judged by its age before this process has seen it this long


def end_useless(course: Course, rules: Rules, reading: PoolReading) -> None:
    """Decide the end of what will never work: unjoined, zombie, stopped, stray, drained by an operator."""
    for machine in reading.instances:
        if machine.phase is InstancePhase.GONE or course.state.is_busy(machine.node):
            continue
        if machine.node in course.state.ending:
            continue
        if why := _useless(course, rules, machine):
            course.end(machine.node, why)


def _useless(course: Course, rules: Rules, machine: Instance) -> str:
    sizing, node = course.sizing, course.state.nodes.get(machine.node)
    pool = course.pool(rules)
    first_s = pool.machines.get(machine.node, course.now_s)
    is_connected = node is not None and node.is_connected
    if machine.is_stray:
        is_due = course.now_s - pool.strays.get(machine.node, course.now_s) >= sizing.stray_grace_s
        return "it carries our tag and belongs to no group" if is_due else ""
    if machine.phase is InstancePhase.STOPPED:
        return "" if is_connected else f"stopped: {machine.reason or 'no reason given'}"
    if machine.phase is InstancePhase.LEAVING or (node is not None and not node.is_gone):
        return ""
    if node is not None and node.drain_user is not None:
        return f"drained by {node.drain_user}"
    if node is not None:
        is_due = course.now_s - node.since_s >= sizing.boot_timeout_s
        return f"its agent is gone since {course.now_s - node.since_s:.0f} s" if is_due else ""
    return _not_joined(course, rules, machine, first_s)


def _not_joined(course: Course, rules: Rules, machine: Instance, first_s: float) -> str:
    limit_s = course.sizing.boot_timeout_s
    since_s = first_s if machine.since_s is None else machine.since_s
    if course.now_s < max(since_s + limit_s, first_s + min(limit_s, _WATCHED_S)):
        return ""
    why = f"its agent has not joined within {course.now_s - since_s:.0f} s"
    course.tell(rules, What.MACHINE_ENDED, why, node=machine.node)
    shortages.boot_failed(course, rules)
    return why


def end_surplus(course: Course, found: tuple[Supply, ...], wanted: Demand, num_surplus: int) -> None:
    """Decide the end of machines beyond the demand: booting ones at once, idle nodes after a while."""
    num_spare = {s.rules.pool: len(s.live) - s.floor for s in found}
    candidates = sorted(
        (rank, supply.rules.pool, machine.node, why)
        for place, supply in enumerate(found)
        for machine in supply.live
        for rank, why in _surplus(course, supply, machine, wanted, place)
    )
    for rank, pool, node, why in candidates:
        is_unfit = rank[0] == 0
        if num_spare[pool] <= 0 or (num_surplus <= 0 and not is_unfit):
            continue
        num_spare[pool] -= 1
        num_surplus -= 0 if is_unfit else 1
        if pool in course.fresh:
            course.end(node, why)


_Rank = tuple[int, int, bool, float]


def _surplus(
    course: Course, supply: Supply, machine: Instance, wanted: Demand, place: int
) -> Iterator[tuple[_Rank, str]]:
    """Yield when to end the machine among others: of no use, booting, cold, of later pools, newest."""
    first_s = supply.pool.machines.get(machine.node, course.now_s)
    node = course.node(machine.node)
    if node is None:
        if machine.node not in course.state.nodes:
            yield (1, -place, False, -first_s), "no job needs it any more, and its agent has not joined yet"
        return
    idle_s = course.now_s - course.memory.idle.get(machine.node, course.now_s)
    if not course.is_idle_ready(machine.node) or idle_s < course.sizing.idle_release_s:
        return
    launcher = wanted.job.launchers.get(machine.node) if wanted.job is not None else None
    is_warm = launcher is not None and launcher.warmth is Warmth.WARM
    rank = 0 if wanted.is_unfit(node) else 2
    yield (rank, -place, is_warm, -first_s), f"idle for {idle_s:.0f} s"


def release(course: Course, rules: Rules, reading: PoolReading) -> None:
    """Call for the end of the machines whose end is decided; again until the provider shows that it came."""
    there = [
        m for m in reading.instances if m.node in course.state.ending and m.phase is not InstancePhase.GONE
    ]
    for machine in there:
        _tell_stuck(course, rules, machine)
    pool = course.pool(rules)
    due = tuple(
        m.node
        for m in there
        if m.phase is not InstancePhase.LEAVING
        and _has_left(course, m.node)
        and course.now_s - pool.tried.get(m.node, -_RETRY_S) >= _RETRY_S
    )
    if not due or reading.is_writing:
        return
    why = "; ".join(sorted({course.state.ending[name] for name in due}))
    course.writes.append(Release(pool=rules.pool, nodes=due, why=why))
    tried = {**pool.tried, **dict.fromkeys(due, course.now_s)}
    released = {**dict.fromkeys(due, course.now_s), **pool.released}
    course.remember(rules, tried=tried, released=released)
    if first := [name for name in due if name not in pool.released]:
        course.tell(rules, What.POOL_RELEASES, f"{', '.join(first)}: {why}")


def _has_left(course: Course, name: str) -> bool:
    node = course.node(name)
    if node is None:
        return True
    return node.phase is NodePhase.RELEASED and course.now_s - node.since_s >= _LEAVE_S


def _tell_stuck(course: Course, rules: Rules, machine: Instance) -> None:
    pool = course.pool(rules)
    since_s = pool.released.get(machine.node)
    if since_s is not None and course.now_s - since_s >= _STUCK_S and machine.node not in pool.stuck:
        waited_s = course.now_s - since_s
        why = f"still {machine.phase} {waited_s:.0f} s after its end was asked for; it may cost money"
        course.remember(rules, stuck=pool.stuck | {machine.node})
        course.tell(rules, What.MACHINE_STUCK, why, node=machine.node)


def let_go(course: Course, rules: Rules, reading: PoolReading) -> None:
    """Let a leaving machine end once no job has anything there, or shortly before it ends anyway."""
    for machine in reading.instances:
        at_s, tried = machine.leaves_at_s, course.pool(rules).tried
        if machine.phase is not InstancePhase.LEAVING or at_s is None:
            continue
        is_busy = course.state.is_busy(machine.node)
        is_late = course.now_s >= at_s - course.sizing.leave_margin_s
        if (is_busy and not is_late) or course.now_s - tried.get(machine.node, -_RETRY_S) < _RETRY_S:
            continue
        why = "its time is almost over" if is_busy else "no job has anything there"
        course.writes.append(LetGo(pool=rules.pool, node=machine.node, why=why))
        course.remember(rules, tried={**tried, machine.node: course.now_s})


def remember_idle(course: Course) -> None:
    """Note since when each node that could work has no work."""
    idle = {
        name: course.memory.idle.get(name, course.now_s)
        for name in course.state.nodes
        if course.is_idle_ready(name)
    }
    course.memory = replace(course.memory, idle=idle)
