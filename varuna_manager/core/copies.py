"""Copies of state in the memory of nodes: who may hold which, and for how long they are needed.

The core knows where copies may be, never that they are: each rank looks itself and says what it can load.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from varuna_manager.core import pool
from varuna_manager.core.actions import RetireCopies
from varuna_manager.core.change import Change, without
from varuna_manager.core.phases import HOLDING, JobPhase
from varuna_manager.core.state import Holding, Job, Node, Run, State
from varuna_runtime.spec.copies import Vault, Version, buddies
from varuna_runtime.spec.layout import Plan

# --- where ---------------------------------------------------------------------------------------------


def vaults(state: State, job: Job) -> tuple[Vault, ...]:
    """Return the vaults of all connected nodes that may hold copies of the job, by node."""
    nodes = (state.nodes.get(name) for name in sorted(job.holders))
    return tuple(_vault(node) for node in nodes if node is not None and _is_open(node))


def buddies_on(state: State, run: Run, node: str) -> dict[int, tuple[Vault, ...]]:
    """Return, by rank on `node`, where a copy of its state goes beside its own."""
    return {
        rank: tuple(_vault(state.nodes[name]) for name in run.buddies[rank])
        for rank in run.plan.ranks_on(node)
        if run.buddies.get(rank)
    }


def chosen_buddies(state: State, job: Job, plan: Plan) -> dict[int, tuple[str, ...]]:
    """Return, by rank, the nodes with a vault that keep a copy of its state beside its own."""
    domains = {name: state.nodes[name].domain for name in plan.nodes}
    able = _with_vault(state, plan.nodes)
    return buddies(plan, domains, able=able, is_shared=job.spec.shard_optimizer)


def _vault(node: Node) -> Vault:
    return Vault(node=node.node, host=node.host, port=node.vault_port)


def _is_open(node: Node) -> bool:
    return node.is_connected and node.vault_port > 0


def must_persist(state: State, job: Job, run: Run) -> bool:
    """Return whether a drain that is asked for now must end at a durable step.

    Copies are enough where training goes on at once, and the members that stay hold all of the state.
    """
    usable = {node.node for node in pool.usable(state, job)}
    staying = usable & run.members.keys()
    return len(usable) < job.spec.nodes.min or not survive(state, job, run, staying)


def num_holders(state: State, job: Job, run: Run, staying: Collection[str]) -> int:
    """Return on how many of the nodes that stay each state of the run's ranks lies at least, once copied."""
    able = _with_vault(state, staying)
    found: dict[int, set[str]] = {}  # by rank where each holds a part of its own, else by stage
    for rank, slot in enumerate(run.plan.placement):
        part = rank if job.spec.shard_optimizer else run.plan.layout.stage_of(rank)
        found.setdefault(part, set()).update({slot.node, *run.buddies.get(rank, ())} & able)
    return min(map(len, found.values()))


def survive(state: State, job: Job, run: Run, staying: Collection[str]) -> bool:
    """Return whether the nodes that stay hold all state of the run's ranks, once it is copied."""
    return num_holders(state, job, run, staying) > 0


def _with_vault(state: State, names: Iterable[str]) -> set[str]:
    return {name for name in names if state.nodes[name].vault_port}


def held(job: Job, nodes: Iterable[Node]) -> dict[str, tuple[int, ...]]:
    """Return, by node, the segments of the newest generation with copies that its memory may hold."""
    newest = max((each.generation for held in job.holders.values() for each in held), default=0)
    return {
        node.node: each.segments
        for node in nodes
        for each in job.holders.get(node.node, ())
        if each.generation == newest and _is_open(node)
    }


# --- who may hold some ---------------------------------------------------------------------------------


def activated(state: State, job: Job, run: Run) -> Job:
    """Return the job with the members of a generation, and its buddies, as holders of what it trains."""
    segments: dict[str, set[int]] = {}
    for rank, slot in enumerate(run.plan.placement):
        stage = run.plan.stages[run.plan.layout.stage_of(rank)]
        for name in (slot.node, *run.buddies.get(rank, ())):
            segments.setdefault(name, set()).update(range(stage.first, stage.last))
    holders = dict(job.holders)
    for name in sorted(_with_vault(state, segments)):
        held = Holding(generation=run.number, segments=tuple(sorted(segments[name])))
        holders[name] = (*holders.get(name, ()), held)
    return replace(job, holders=holders)


def retire(change: Change, job: Job) -> None:
    """Let nodes drop copies of generations before the newest one whose state is in safe places.

    Those with a part in that generation do it themselves; a node out of reach is told when it is back.
    """
    for name, held in sorted(job.holders.items()):
        left = tuple(each for each in held if each.generation >= job.kept_generation)
        if left == held:
            continue
        node = change.state.nodes[name]
        is_part = any(each.generation == job.kept_generation for each in held)
        if is_part or _is_open(node):
            others = without(change.job(job.job).holders, name)
            change.put_job(replace(change.job(job.job), holders={**others, name: left} if left else others))
        if not is_part:
            _tell_to_retire(change, job, node)


def retire_again(change: Change, node: Node) -> None:
    """Tell a node that is back, or joined anew with its memory, once more: the first word may have been lost.

    What it still holds of generations before would hold back its acknowledgement to its cloud for ever.
    """
    for job in change.state.iter_open():
        if job.kept_generation and node.node in job.touched and node.node not in job.holders:
            _tell_to_retire(change, job, node)


def _tell_to_retire(change: Change, job: Job, node: Node) -> None:
    if _is_open(node):
        change.do(
            RetireCopies(
                node=node.node, incarnation=node.incarnation, job=job.job, generation=job.kept_generation
            )
        )


def lost(change: Change, node: str) -> None:
    """The process that held the node's copies is gone."""
    for job in list(change.state.jobs.values()):
        if node in job.holders:
            change.put_job(replace(job, holders=without(job.holders, node)))


def is_needed(state: State, node: str) -> bool:
    """Return whether some job may still have to load what the node holds, before it is safe elsewhere."""
    return any(
        node in job.holders
        and job.phase in HOLDING - {JobPhase.CANCELLING}
        and (job.phase is not JobPhase.RUNNING or job.keep_by_s is not None)
        for job in state.iter_open()
    )


# --- what is known of their steps, for people ------------------------------------------------------------


def recoverable_step(state: State, job: Job) -> int:
    """Return how many committed steps survive any single loss, as far as was heard."""
    durable = job.durable_step or 0
    if job.run is not None and len(job.run.members) < 2:
        return durable  # its only node has every copy
    return max(durable, *(newest_step(state, job, g) for g in (job.generation, _source(job))))


def newest_step(state: State, job: Job, generation: int) -> int:
    """Return the newest step that copies of the generation are known to be complete for; -1 for none."""
    progress, run = state.seen.progress.get(job.job), job.run
    known = [-1]
    if progress is not None and progress.generation == generation and progress.recoverable is not None:
        known.append(progress.recoverable)
    if run is not None and run.resume is not None and run.resume.generation == generation:
        known.append(run.resume.step)
    if job.stopped_generation == generation:
        known.append(job.reached)
    return max(known)


def _source(job: Job) -> int:
    """Return the generation whose copies the next one, or the one under way, goes on from."""
    resume = job.run.resume if job.run else None
    return job.stopped_generation if resume is None else resume.generation


# --- versions ------------------------------------------------------------------------------------------


def durable_step(loadable: Mapping[int, tuple[Version, ...]]) -> int:
    """Return the newest step that some rank found in the store; 0 for none."""
    return max((v.step for found in loadable.values() for v in found if v.generation == 0), default=0)


def offered(loadable: Mapping[int, tuple[Version, ...]]) -> str:
    """Return in words what each rank can load."""
    return "; ".join(
        f"rank {rank}: {', '.join(map(worded, sorted(found, reverse=True)[:3])) or 'nothing'}"
        for rank, found in sorted(loadable.items())
    )


def worded(version: Version) -> str:
    """Return a version in words."""
    if version.generation:
        return f"step {version.step} of generation {version.generation} in memory"
    return f"step {version.step}" if version.step else "the initial weights"
