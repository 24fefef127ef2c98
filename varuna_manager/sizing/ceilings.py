"""What was learned about jobs that have more nodes than they can use, so that these are not bought again."""

from dataclasses import replace

from varuna_manager.core import pool as core_pool
from varuna_manager.core.phases import WAITING, JobPhase
from varuna_manager.core.state import Job, Warmth
from varuna_manager.sizing.course import Course
from varuna_manager.sizing.demand import PROBE_S, Demand
from varuna_manager.sizing.memory import Ceiling
from varuna_manager.sizing.supply import Supply

_LONGEST_PROBE_S = 8 * 3600.0  # each doubt costs the nodes of one idle time


def forget(course: Course) -> None:
    """Doubt a ceiling after a long time, and drop those of jobs that are over."""
    kept = {
        job: ceiling if course.now_s - ceiling.since_s < ceiling.for_s else replace(ceiling, nodes=None)
        for job, ceiling in course.memory.ceilings.items()
        if job in course.state.open_jobs
    }
    course.memory = replace(course.memory, ceilings=kept)


def learn(course: Course, found: tuple[Supply, ...], wanted: Demand, num_others: int) -> bool:
    """Return True when nodes that the job was offered have been idle for long: it has no use for more."""
    job = wanted.job
    if job is None or not found or any(s.num_coming or _num_booting(course, s) for s in found):
        return False
    usable = core_pool.usable(course.state, job)
    # A launcher that is still being opened may take longer than growth waits for it, and is no refusal.
    offered = [n for n in usable if core_pool.warmth(job, n) is not Warmth.WARMING]
    spares = [n.node for n in offered if course.is_idle_ready(n.node)]
    idle_s = max((course.now_s - course.memory.idle.get(n, course.now_s) for n in spares), default=0.0)
    # A node under notice is a machine, but not one that was offered: with all, the job might use more.
    has_all = len(usable) >= min(wanted.nodes, num_others + sum(s.cap for s in found))
    if not spares or idle_s < (course.sizing.idle_release_s if has_all else PROBE_S):
        return False
    useful = _useful(course, job)
    if useful is None or useful >= wanted.nodes:
        return False
    before = course.memory.ceilings.get(job.job)
    for_s = PROBE_S if before is None else min(2 * before.for_s, _LONGEST_PROBE_S)
    ceiling = Ceiling(nodes=useful, since_s=course.now_s, for_s=for_s)
    course.memory = replace(course.memory, ceilings={**course.memory.ceilings, job.job: ceiling})
    return True


def _num_booting(course: Course, supply: Supply) -> int:
    return sum(machine.node not in course.state.nodes for machine in supply.live)


def _useful(course: Course, job: Job) -> int | None:
    """Return how many nodes the job uses of what it was offered; None while that is not settled."""
    if job.phase in WAITING:
        is_refused = job.refused_version == course.state.pool_version
        return 0 if is_refused else None
    is_settled = job.phase is JobPhase.RUNNING and job.asked_version is None and job.deadline_s is None
    if job.run is None or not is_settled or core_pool.is_warming(course.state, job):
        return None
    return len(job.run.members)
