"""One pass of sizing: fresh answers in, decisions out. Pure, total, and idempotent as far as the world is."""

from collections.abc import Mapping
from dataclasses import replace

from varuna_manager.cloud.provider import Trouble
from varuna_manager.core.phases import WAITING
from varuna_manager.core.state import State
from varuna_manager.core.words import What, counted
from varuna_manager.sizing import ceilings, growth, intake, shortages, shrink
from varuna_manager.sizing.course import Course
from varuna_manager.sizing.decisions import Answer, Decision, Failed, GiveUp, Grow, Release, Write
from varuna_manager.sizing.demand import Demand, demand
from varuna_manager.sizing.memory import Memory
from varuna_manager.sizing.settings import Rules, Settings
from varuna_manager.sizing.supply import Supply, num_others, supplies, unknown


def decide(
    memory: Memory, state: State, answers: Mapping[str, Answer], settings: Settings, now_s: float
) -> tuple[Memory, tuple[Decision, ...]]:
    """Return what is remembered and what to do, given the answers of this pass by pool.

    Pools without an answer in this pass count with what is known of them and are not written to.
    Events come before writes and are to be applied before them.
    """
    course = Course(memory, state, settings, now_s)
    asked = [rules for rules in settings.rules if rules.pool in answers]
    for rules in asked:
        intake.take_in(course, rules, answers[rules.pool])
    intake.report_vanished(course)
    shrink.remember_idle(course)
    ceilings.forget(course)
    for rules in asked:
        if rules.is_sized and rules.pool in course.fresh:
            shrink.end_useless(course, rules, course.fresh[rules.pool])
            shrink.release(course, rules, course.fresh[rules.pool])
            shrink.let_go(course, rules, course.fresh[rules.pool])
        shortages.tell_state(course, rules)
    _share(course)
    for rules in asked:
        _forget_failed_write(course, rules)
    return course.memory, course.decisions


def _forget_failed_write(course: Course, rules: Rules) -> None:
    """With nothing left to write, a write that failed is of no matter any more."""
    is_ending = any(node in course.state.ending for node in course.pool(rules).machines)
    if not is_ending and not any(write.pool == rules.pool for write in course.writes):
        course.remember(rules, is_write_failing=False)


def _share(course: Course) -> None:
    """Bring the machines of all pools in line with what the jobs ask for."""
    wanted = demand(course.memory, course.state)
    found = supplies(course, wanted)
    others = num_others(course, wanted)
    if ceilings.learn(course, found, wanted, others):
        wanted = demand(course.memory, course.state)
    if hopeless := _hopeless(course, found, wanted, others):
        wanted = Demand(job=wanted.job, nodes=0)
    here = sum(supply.count for supply in found)
    paid = growth.affordable(course, found, wanted)
    nodes = wanted.nodes if paid >= here else min(wanted.nodes, others + paid)
    num_surplus = others + sum(len(s.live) - s.num_unfit for s in found) - nodes
    shrink.end_surplus(course, found, wanted, num_surplus)
    growth.give_up(course, found, num_surplus)
    growth.grow(course, found, wanted, nodes - others - here)
    for supply in found if hopeless else ():
        is_unpriced = supply.price is None and growth.limit(course, wanted) is not None
        course.remember(supply.rules, limit=growth.UNPRICED if is_unpriced else hopeless)


def _hopeless(course: Course, found: tuple[Supply, ...], wanted: Demand, num_others: int) -> str:
    """Return why the job waits for more nodes than there can ever be, or an empty text."""
    job = wanted.job
    if job is None or job.phase not in WAITING or not found or any(unknown(course, wanted)):
        return ""
    most = growth.reachable(course, found, wanted) + num_others
    if most >= job.spec.nodes.min:
        return ""
    return f"job {job.job} needs {counted(job.spec.nodes.min, 'node')}; bounds and max_price allow {most}"


def outcome(
    memory: Memory, state: State, write: Write, failure: Failed | None, settings: Settings, now_s: float
) -> tuple[Memory, tuple[Decision, ...]]:
    """Return what is remembered once a write was answered, or was not."""
    if failure is None:
        well = replace(memory.of(write.pool), is_write_failing=False)
        return memory.having(write.pool, well), ()
    course = Course(memory, state, settings, now_s)
    rules = settings.of(write.pool)
    course.remember(rules, is_write_failing=True)
    asked = course.pool(rules).asked
    course.remember(rules, asked=None)  # the next reading tells whether it was carried out all the same
    if failure.trouble is Trouble.THROTTLED:
        intake.keep_quiet(course, rules, failure)
    elif isinstance(write, Grow) and failure.trouble is not Trouble.RETRY:
        reading = course.pool(rules).reading
        missing = max(1, (asked or write.desired) - (reading.desired if reading else 0))
        words = f"asked for {write.desired}: {failure.trouble}: {failure.message}"
        shortages.enter(course, rules, words, missing=missing, trouble=failure.trouble)
    elif not (isinstance(write, GiveUp) and failure.trouble is Trouble.RETRY):  # the world moved on meanwhile
        key = f"{type(write).__name__} {failure.trouble}"
        words = f"{type(write).__name__} failed: {failure.trouble}: {failure.message}"
        shortages.told(course, rules, What.POOL_TROUBLE, key, words)
    if isinstance(write, Release) and failure.trouble in {Trouble.RETRY, Trouble.THROTTLED}:
        _try_again_soon(course, rules, write)
    return course.memory, course.decisions


def _try_again_soon(course: Course, rules: Rules, write: Release) -> None:
    tried = course.pool(rules).tried
    course.remember(rules, tried={n: at_s for n, at_s in tried.items() if n not in write.nodes})
