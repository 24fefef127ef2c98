"""Pools that do not deliver: how long to leave them alone, how much to ask for next, and when all is well."""

from varuna_manager.cloud.provider import InstancePhase, PoolReading, Trouble
from varuna_manager.core.words import What
from varuna_manager.sizing.course import Course
from varuna_manager.sizing.memory import PoolMemory
from varuna_manager.sizing.settings import Rules

_LIVING = {InstancePhase.STARTING, InstancePhase.RUNNING}


def look(course: Course, rules: Rules, reading: PoolReading) -> None:
    """Compare a fresh reading with what was asked for."""
    live = _num_live(reading)
    pool = course.pool(rules)
    is_lacking = reading.desired > live
    lacking_since_s = (pool.lacking_since_s or course.now_s) if is_lacking else None
    tried = pool.tried if is_lacking else {node: at_s for node, at_s in pool.tried.items() if node}
    pool = course.remember(rules, lacking_since_s=lacking_since_s, tried=tried)
    if pool.asked is not None and live >= pool.asked:
        _delivered(course, rules)
    elif pool.asked is not None and not _has_settled(course, rules, reading):
        return  # what the provider says of a shortage may be of the time before
    elif reading.shortage and (is_lacking or pool.asked is not None):
        _short(course, rules, reading, live, reading.shortage)
    elif lacking_since_s is not None and course.now_s - lacking_since_s >= course.sizing.boot_timeout_s:
        waited_s = course.now_s - lacking_since_s
        _short(course, rules, reading, live, f"nothing came within {waited_s:.0f} s")
    elif not is_lacking and not reading.is_writing:
        if pool.asked is not None and not pool.released:  # what came went before it was seen
            pool = boot_failed(course, rules)
        short = pool.short if course.now_s < pool.retry_at_s else ""
        course.remember(rules, short=short, asked=None)


def _num_live(reading: PoolReading) -> int:
    return sum(m.phase in _LIVING and not m.is_stray for m in reading.instances)


def _has_settled(course: Course, rules: Rules, reading: PoolReading) -> bool:
    """Return whether a reading tells what became of the last growth: late, or by a new machine that failed.

    Such a machine is ended at once, and the shortage is no longer said then.
    """
    pool = course.pool(rules)
    failed = (m.node for m in reading.instances if m.phase is InstancePhase.STOPPED)
    is_new = any(pool.machines[node] > pool.asked_s for node in failed)
    return is_new or course.now_s - pool.asked_s >= settle_s(rules)


def settle_s(rules: Rules) -> float:
    """Return how long readings may lag behind a write."""
    return 2 * rules.poll_s


def _delivered(course: Course, rules: Rules) -> None:
    pool = course.pool(rules)
    step = None if pool.step is None else pool.step * 2
    course.remember(rules, asked=None, shortages=0, short="", retry_at_s=0.0, step=step)


def _short(course: Course, rules: Rules, reading: PoolReading, live: int, words: str) -> None:
    pool = course.pool(rules)
    if course.now_s < pool.retry_at_s:
        return
    target = reading.desired if pool.asked is None else max(pool.asked, reading.desired)
    trouble = reading.shortage_trouble or Trouble.CAPACITY
    enter(course, rules, f"asked for {target}, has {live}: {words}", missing=target - live, trouble=trouble)


def enter(course: Course, rules: Rules, words: str, *, missing: int, trouble: Trouble) -> None:
    """Leave the pool alone for a while: twice as long as the last time, then ask for half as much."""
    pool, sizing = course.pool(rules), course.sizing
    in_a_row = 1 if _is_long_ago(course, pool) else pool.shortages + 1
    wait_s = min(sizing.backoff_cap_s, sizing.backoff_s * 2.0 ** min(in_a_row - 1, 32))
    course.remember(
        rules,
        asked=None,
        short=words,
        shortages=in_a_row,
        step=max(1, missing // 2),
        retry_at_s=course.now_s + wait_s,
    )
    what = What.POOL_SHORT if trouble is Trouble.CAPACITY else What.POOL_TROUBLE
    told(course, rules, what, words, f"{words}; next try in {wait_s:.0f} s")


def died_early(course: Course, rules: Rules, reading: PoolReading) -> None:
    """Count machines that went before their agent joined, unless the provider is there to replace them."""
    if reading.desired <= _num_live(reading):
        boot_failed(course, rules)


def boot_failed(course: Course, rules: Rules) -> PoolMemory:
    """Count a machine whose agent never joined; after some in a row the pool is left alone for long."""
    pool = course.pool(rules)
    failures = pool.boot_failures + 1
    if failures < course.sizing.boot_attempts:
        return course.remember(rules, boot_failures=failures)
    wait_s = course.sizing.backoff_cap_s
    words = f"{failures} machines in a row whose agent never joined; look at their console output"
    course.remember(
        rules,
        boot_failures=0,
        short=words,
        shortages=pool.shortages + 1,
        retry_at_s=course.now_s + wait_s,
        asked=None,
        step=1,
    )
    told(course, rules, What.POOL_TROUBLE, words, f"{words}; next try in {wait_s:.0f} s")
    return course.pool(rules)


def told(course: Course, rules: Rules, what: What, key: str, why: str) -> None:
    """Tell a trouble once, by its `key`, until all is well again; two that take turns are two lines."""
    known = course.pool(rules).told
    if key not in known:
        course.remember(rules, told=known | {key})
        course.tell(rules, what, why)


def tell_state(course: Course, rules: Rules) -> None:
    """Tell a read that fails, and that all is well again, once each."""
    pool = course.pool(rules)
    if pool.failed is not None:
        words = f"{pool.failed.trouble}: {pool.failed.message}"
        told(course, rules, What.POOL_TROUBLE, pool.failed.trouble, words)  # ids in a message do not count
    elif pool.told and not pool.is_write_failing and pool.asked is None and _is_over(course, pool):
        course.remember(rules, told=frozenset())
        course.tell(rules, What.POOL_WELL, "it answers and has what was asked for")


def _is_over(course: Course, pool: PoolMemory) -> bool:
    """Return True once it delivered, or was asked for nothing for long; a wait that is over says nothing."""
    return pool.shortages == 0 or _is_long_ago(course, pool)


def _is_long_ago(course: Course, pool: PoolMemory) -> bool:
    return course.now_s > pool.retry_at_s + course.sizing.backoff_cap_s
