"""Questions about the pool: who may be planned with, who holds it, whose turn is next."""

from collections import Counter
from collections.abc import Iterable

from varuna_manager.core.phases import HOLDING, WAITING, JobPhase
from varuna_manager.core.state import Job, Node, State, Warmth
from varuna_manager.planner.request import PlannableNode
from varuna_runtime.spec.job import Exactness
from varuna_runtime.spec.layout import Plan


def signature(state: State) -> tuple[tuple[str, str, int, int, bool], ...]:
    """Return what the pool version counts the changes of; of prices only that they become known."""
    return tuple(
        (n.node, n.incarnation, n.slots, n.memory_bytes, n.price_per_hour is None) for n in plannable(state)
    )


def plannable(state: State) -> tuple[Node, ...]:
    """Return the nodes the planner may use, by name."""
    return tuple(n for _, n in sorted(state.nodes.items()) if n.is_plannable)


def usable(state: State, job: Job) -> tuple[Node, ...]:
    """Return the plannable nodes of the job's device kind; every kind for a statistical job."""
    return of_kind(plannable(state), job.spec.exactness, job.device_kind)


def of_kind(nodes: tuple[Node, ...], exactness: Exactness, kind: str) -> tuple[Node, ...]:
    """Return the nodes a job of that exactness may use once it is pinned to `kind`; empty: not pinned yet."""
    if exactness is Exactness.STATISTICAL or not kind:
        return nodes
    return tuple(n for n in nodes if n.device_kind == kind)


def warmth(job: Job, node: Node) -> Warmth | None:
    """Return what is known of the job's launcher on this incarnation of the node."""
    launcher = job.launchers.get(node.node)
    return launcher.warmth if launcher and launcher.incarnation == node.incarnation else None


def warm(state: State, job: Job) -> tuple[Node, ...]:
    """Return the usable nodes on which the job starts without delay."""
    return tuple(n for n in usable(state, job) if warmth(job, n) is Warmth.WARM)


def is_warming(state: State, job: Job) -> bool:
    """Return True while growth should wait for a usable node that is about to be warm."""
    launchers = (job.launchers.get(n.node) for n in usable(state, job) if warmth(job, n) is Warmth.WARMING)
    return any(launcher is not None and launcher.deadline_s is not None for launcher in launchers)


def preferred(state: State, job: Job) -> tuple[Node, ...]:
    """Return the nodes to plan with: the warm ones once the job has run and if they are enough, else all."""
    ready = warm(state, job)
    if job.first_running_s is None or len(ready) < max(1, job.spec.nodes.min):
        return usable(state, job)
    return ready


def preferred_kind(nodes: Iterable[Node]) -> str:
    """Return the device kind with the most slots, the first by name among equals; empty without nodes."""
    slots: Counter[str] = Counter()
    for node in nodes:
        slots[node.device_kind] += node.slots
    return min(slots, key=lambda kind: (-slots[kind], kind), default="")


def as_request(nodes: Iterable[Node]) -> tuple[PlannableNode, ...]:
    """Return the nodes as the planner knows them."""
    return tuple(
        PlannableNode(
            node=n.node,
            slots=n.slots,
            memory_bytes=n.memory_bytes,
            device_kind=n.device_kind,
            domain=n.domain,
            price_per_hour=n.price_per_hour,
        )
        for n in nodes
    )


def misplaced(plan: Plan, nodes: Iterable[Node], num_segments: int) -> str:
    """Return why the plan cannot be started on these nodes, or an empty string."""
    slots = {n.node: n.slots for n in nodes}
    cuts = [0, *(stage.last for stage in plan.stages)]
    if len(plan.placement) != plan.layout.world_size or len(set(plan.placement)) != len(plan.placement):
        return "its placement does not give every rank its own slot"
    if [s.first for s in plan.stages] != cuts[:-1] or cuts[-1] != num_segments:
        return "its stages do not cover every segment once"
    outside = [s for s in plan.placement if not 0 <= s.index < slots.get(s.node, 0)]
    return f"slot {outside[0].index} of node {outside[0].node} is not in the pool" if outside else ""


def holder(state: State) -> Job | None:
    """Return the job that holds the pool."""
    return next((job for job in state.iter_open() if job.phase in HOLDING), None)


def next_in_turn(state: State) -> Job | None:
    """Return the waiting job to start first: by priority, then order of submission.

    One that the planner refused at the present pool lets the others pass until the pool changes.
    """
    waiting = (
        job for job in state.iter_open() if job.phase in WAITING and job.refused_version != state.pool_version
    )
    return min(waiting, key=lambda job: (-job.spec.priority, job.seq), default=None)


def is_settled(state: State) -> bool:
    """Return False while nodes may still come back after a restart of the manager."""
    return not any(node.awaited for node in state.nodes.values())


def lingering(state: State, job: Job) -> Job | None:
    """Return another job that still has processes on some node."""
    return next((other for other in state.iter_open() if other.hosts and other.job != job.job), None)


def shortage(state: State, job: Job) -> str:
    """Return why the pool is too small for the job, or an empty string."""
    have, want = len(usable(state, job)), job.spec.nodes.min
    if have >= want:
        return ""
    kind = f" of kind {job.device_kind}" if job.device_kind and len(plannable(state)) > have else ""
    return f"waiting for nodes: {have} usable{kind}, nodes.min is {want}"


def waiting_reason(state: State, job: Job) -> str:
    """Return why a PENDING job has not started."""
    other = holder(state) or lingering(state, job)
    if other is not None:
        higher = job.spec.priority > other.spec.priority
        note = "; a higher priority does not preempt it" if higher else ""
        return f"job {other.job} ({other.phase}) holds the pool{note}"
    first = next_in_turn(state)
    if first is not None and first.job != job.job:
        return f"job {first.job} is before it and waits: {shortage(state, first) or first.reason}"
    if not is_settled(state):
        return "the manager started again and waits for its nodes to come back"
    return shortage(state, job) or job.reason


def spare_reason(state: State, node: Node) -> str:
    """Return why a plannable node is not used by the running job, or an empty string."""
    job = holder(state)
    if job is None or not node.is_plannable or job.phase is JobPhase.CANCELLING:
        return ""
    if node not in usable(state, job):
        return f"spare: job {job.job} is pinned to {job.device_kind} (exactness: bitwise)"
    if job.run is not None and node.node not in job.run.members:
        launcher = job.launchers.get(node.node)
        if launcher is not None and launcher.warmth is Warmth.COLD:
            return f"spare: cannot open the launcher of job {job.job}: {launcher.reason}"
        if launcher is not None and launcher.warmth is Warmth.WARMING:
            return f"spare: opens the launcher of job {job.job}"
        return f"spare: the plan of job {job.job} does not use it"
    return ""
