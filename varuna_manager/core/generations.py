"""The life of a generation: asked for, started, activated, drained, ended; and the end of a job."""

from dataclasses import replace

from varuna_manager.core import copies, departures, pace, policy, pool
from varuna_manager.core.actions import (
    AbortRanks,
    ActivateRanks,
    DrainRanks,
    FindProfile,
    ForgetJob,
    MakePlan,
    StartRanks,
)
from varuna_manager.core.change import Change
from varuna_manager.core.outlook import outlook, unmended_s
from varuna_manager.core.phases import JobPhase
from varuna_manager.core.state import Host, Job, Node, Run
from varuna_manager.core.words import What, counted
from varuna_manager.planner.outlook import Outlook
from varuna_manager.planner.request import PlanRequest
from varuna_runtime.spec.generation import GenerationKind
from varuna_runtime.spec.job import Objective
from varuna_runtime.spec.layout import Plan, Slot

DOUBTFUL_STARTS = 2  # that failed without progress in between


def begin(change: Change, job: Job, reason: str, *, delay_s: float = 0.0) -> Job:
    """Move towards a new generation, after `delay_s`; `tend` asks for the profile or the plan."""
    phase = JobPhase.PROFILING if job.profile is None else JobPhase.PLANNING
    if job.phase is not phase:
        job = change.move_job(replace(job, run=None), phase, reason)
    deadline_s = change.at_s + delay_s if delay_s > 0 else None
    return change.put_job(
        replace(job, run=None, reason=reason, asked_version=None, deadline_s=deadline_s, refused_version=None)
    )


def ask(change: Change, job: Job, nodes: tuple[Node, ...]) -> None:
    """Ask for the profile if there is none, else for a plan on these nodes of the present pool."""
    version = change.state.pool_version
    is_profiled = job.profile is not None
    timeout_s = change.config.plan_timeout_s if is_profiled else change.config.find_timeout_s
    offered = frozenset(n.node for n in nodes)
    deadline_s = change.at_s + timeout_s
    change.put_job(replace(job, asked_version=version, deadline_s=deadline_s, offered=offered, ahead=None))
    if job.profile is None:
        change.do(FindProfile(job=job.job, workload=job.workload, device_kind=job.device_kind))
        return
    request = PlanRequest(
        spec=job.spec,
        model=job.model,
        profile=job.profile,
        nodes=pace.as_request(change, job, nodes),
        batch=job.batch,
        running=job.run.plan if job.run and job.run.number == job.refreshed_generation else None,
        outlook=_outlook(change, job, nodes),
        held=copies.held(job, nodes),
    )
    change.do(MakePlan(job=job.job, pool_version=version, request=request))


def _outlook(change: Change, job: Job, nodes: tuple[Node, ...]) -> Outlook | None:
    """The other objectives do not look ahead: their questions stay equal, whatever was lost."""
    if job.spec.objective is not Objective.PROGRESS:
        return None
    return outlook(change.state, job, nodes, change.at_s)


def start_profile(change: Change, job: Job) -> None:
    """Start a PROFILE generation on one slot of two nodes, or on up to two slots of a single one."""
    nodes = pool.usable(change.state, job)[:2]
    per_node = 1 if len(nodes) == 2 else min(2, nodes[0].slots)
    slots = tuple(Slot(node=n.node, index=i) for n in nodes for i in range(per_node))
    batch = policy.profile_batch(job, len(slots))
    job = start(change, job, GenerationKind.PROFILE, policy.profile_plan(job.model, slots, batch))
    deadline_s = change.at_s + change.config.profile_timeout_s
    change.put_job(replace(job, asked_version=None, deadline_s=deadline_s))
    change.announce(
        What.PROFILING, f"no profile yet: measuring on {', '.join(n.node for n in nodes)}", job=job
    )


def start_training(change: Change, job: Job, plan: Plan) -> None:
    """Start a TRAIN generation under `plan`, which fits the pool as it is now."""
    job = change.move_job(
        replace(job, batch=job.batch or plan.batch, plan=plan, ahead=None), JobPhase.STARTING, job.reason
    )
    job = start(change, job, GenerationKind.TRAIN, plan)
    change.put_job(replace(job, deadline_s=change.at_s + change.config.prepare_timeout_s))
    on = counted(len(plan.nodes), "node")
    why = f"layout {plan.layout} on {on}, predicted {plan.predicted_step_s:.3g} s a step"
    change.announce(What.PLANNED, why, job=job)
    resume = "the initial weights" if job.durable_step is None else f"step {job.durable_step}"
    has_copies = job.run is not None and copies.vaults(change.state, job)
    memory = "memory, or " if has_copies else ""
    change.announce(What.STARTED, f"from {memory}{resume}: {job.reason}", job=job)


def start(change: Change, job: Job, kind: GenerationKind, plan: Plan) -> Job:
    """Send Start to every node of the plan, under the next generation number."""
    number = job.generation + 1
    run = Run(
        number=number,
        kind=kind,
        plan=plan,
        plan_hash=plan.hash(),
        members={name: change.state.nodes[name].incarnation for name in plan.nodes},
        resume_step=_known_durable(job) if kind is GenerationKind.TRAIN else None,
        started_s=change.at_s,
        buddies=copies.chosen_buddies(change.state, job, plan) if kind is GenerationKind.TRAIN else {},
    )
    hosts = {**job.hosts, **{name: Host(generation=number) for name in plan.nodes}}
    touched = job.touched | set(plan.nodes)
    job = change.put_job(replace(job, generation=number, run=run, hosts=hosts, touched=touched))
    for name in plan.nodes:
        send_start(change, job, run, name)
    return job


def _known_durable(job: Job) -> int | None:
    """Return the durable step that ranks may rely on; None has each of them look, and check what it offers.

    A durable step may be damaged where no rank that has copies would notice: failed starts ask for a look.
    """
    return None if job.failed_starts >= DOUBTFUL_STARTS else job.durable_step


def send_start(change: Change, job: Job, run: Run, node: str) -> None:
    """Send Start to one node; again is harmless."""
    is_training = run.kind is GenerationKind.TRAIN
    change.do(
        StartRanks(
            node=node,
            incarnation=run.members[node],
            job=job.job,
            generation=run.number,
            kind=run.kind,
            plan=run.plan,
            spec=job.spec,
            model=job.model,
            bundle=job.bundle,
            ranks=run.plan.ranks_on(node),
            resume_step=run.resume_step,
            vaults=copies.vaults(change.state, job) if is_training else (),
            buddies=copies.buddies_on(change.state, run, node),
            unmended_s=_unmended_s(change, job, run) if is_training else 0.0,
        )
    )


def _unmended_s(change: Change, job: Job, run: Run) -> float:
    present = run.members.keys() & change.state.nodes.keys()
    nodes = tuple(change.state.nodes[name] for name in sorted(present))
    holders = copies.num_holders(change.state, job, run, present)
    return unmended_s(change.state, nodes, holders, change.at_s)


def send_activate(change: Change, job: Job, run: Run, node: str) -> None:
    """Send Activate to one node; again is harmless."""
    change.do(
        ActivateRanks(
            node=node,
            incarnation=run.members[node],
            job=job.job,
            generation=run.number,
            endpoints=tuple(endpoint for _, endpoint in sorted(run.endpoints.items())),
            resume=run.resume,
        )
    )


def send_drain(change: Change, job: Job, run: Run, node: str, until_s: float) -> None:
    """Send Drain to one node, to be over at `until_s`; again is harmless and may shorten it."""
    change.do(
        DrainRanks(
            node=node,
            incarnation=run.members[node],
            job=job.job,
            generation=run.number,
            within_s=until_s - change.at_s,
            reason=job.reason,
            persist=run.is_persisting,
        )
    )


def send_abort(change: Change, job: Job, node: Node, generation: int, reason: str) -> None:
    """Send Abort to one node if it can be reached; else its return or its lease settles it."""
    if node.is_connected:
        change.do(
            AbortRanks(
                node=node.node,
                incarnation=node.incarnation,
                job=job.job,
                generation=generation,
                reason=reason,
            )
        )


def begin_drain(change: Change, job: Job, run: Run, reason: str) -> None:
    """Let every rank stop at an agreed step; without time for it, go on as after a loss."""
    change.announce(What.MORPH, reason, job=job)
    until_s = departures.drain_until_s(change.state, job, run, change.at_s)
    if until_s <= change.at_s:
        begin(change, end(change, job, reason), f"{reason}; too late to drain")
        return
    job = change.move_job(job, JobPhase.DRAINING, reason)
    drain(change, job, run, until_s)


def drain(change: Change, job: Job, run: Run, until_s: float) -> None:
    """Send Drain to every member, to be over at `until_s`; once it is to be durable, that stays."""
    run = replace(run, is_persisting=run.is_persisting or copies.must_persist(change.state, job, run))
    job = change.put_job(replace(job, run=run, deadline_s=until_s))
    for name in reachable(change, run):
        send_drain(change, job, run, name, until_s)


def drain_took(change: Change, job: Job, run: Run) -> Job:
    """Remember how long the drain that ends now took."""
    took_s = change.at_s - job.since_s
    if run.is_kept:
        return change.put_job(replace(job, kept_drain_s=took_s))
    return change.put_job(replace(job, drain_s=took_s))


def drain_failed(change: Change, job: Job) -> Job:
    """Remember that a drain takes longer than the one that ends now had; no less than was thought before."""
    guess_s, took_s = change.config.drain_guess_s, change.at_s - job.since_s
    if job.run is not None and not job.run.is_persisting:
        thought_s = guess_s if job.kept_drain_s is None else job.kept_drain_s
        return change.put_job(replace(job, kept_drain_s=max(thought_s, took_s)))
    thought_s = guess_s if job.drain_s is None else job.drain_s
    return change.put_job(replace(job, drain_s=max(thought_s, took_s)))


def reachable(change: Change, run: Run) -> list[str]:
    """Return the members that are connected under the incarnation they were started on."""
    nodes = (change.state.nodes[name] for name in sorted(run.members))
    return [n.node for n in nodes if n.is_connected and n.incarnation == run.members[n.node]]


def end(change: Change, job: Job, reason: str) -> Job:
    """End the current generation on every node; each has `abort_timeout_s` to confirm it."""
    gone_by_s = change.at_s + change.config.abort_timeout_s
    for name, host in sorted(job.hosts.items()):
        send_abort(change, job, change.state.nodes[name], host.generation, reason)
    return change.put_job(_expecting_gone(replace(job, run=None), gone_by_s))


def stop(change: Change, job: Job) -> Job:
    """Let go of a generation whose ranks ended by themselves; each node has the time to confirm it."""
    gone_by_s = change.at_s + change.config.abort_timeout_s
    return change.put_job(_expecting_gone(replace(job, run=None), gone_by_s))


def finish(change: Change, job: Job, phase: JobPhase, what: What, reason: str) -> None:
    """End the job for good: abort what still runs and let every node forget it."""
    job = stop(change, job) if phase is JobPhase.SUCCEEDED else end(change, job, reason)
    holders = {name: held for name, held in job.holders.items() if not change.state.nodes[name].is_connected}
    job = change.move_job(
        replace(job, open_generation=0, launchers={}, holders=holders, keep_by_s=None), phase, reason
    )
    change.announce(what, reason, job=job)
    for name in sorted(job.touched):
        send_forget(change, job, change.state.nodes[name])


def send_forget(change: Change, job: Job, node: Node) -> None:
    """Send Forget to one node if it can be reached."""
    if node.is_connected:
        change.do(ForgetJob(node=node.node, incarnation=node.incarnation, job=job.job))


def _expecting_gone(job: Job, gone_by_s: float) -> Job:
    hosts = {
        name: Host(generation=h.generation, gone_by_s=h.gone_by_s or gone_by_s)
        for name, h in job.hosts.items()
    }
    return replace(job, hosts=hosts)
