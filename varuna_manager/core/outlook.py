"""What was seen of nodes that were lost, and what is expected of those that are there. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from statistics import median_low

from varuna_manager.core.change import Change
from varuna_manager.core.state import Job, Loss, Node, State
from varuna_manager.planner.outlook import LossRate, Outlook, estimated

LOSSES_MAX = 64
"""Losses that are remembered, of all pools together."""
WINDOW_S = 3 * 3600.0
"""Losses longer ago say nothing any more."""
BURST_S = 5.0
"""Losses within this time of the first of them are one moment: leases end one after the other."""
BURST_DOUBT = 0.1
"""What was never seen may happen: so many moments are taken to have been bursts of any size."""
SAVE_EVERY_S = 2.0
"""About how often a worker saves where the job leaves it to us; see `worker.saving`."""


def observe(change: Change, before: State) -> None:
    """Remember the nodes that this event took, unless somebody wanted them gone."""
    if change.state.nodes is before.nodes:
        return
    losses = tuple(_losses(change, before))
    if losses:
        remembered = (*change.state.losses, *losses)[-LOSSES_MAX:]
        change.state = replace(change.state, losses=remembered)


def _losses(change: Change, before: State) -> Iterator[Loss]:
    for name, node in before.nodes.items():
        now = change.state.nodes.get(name)
        is_lost = now is None or now.is_gone or now.incarnation != node.incarnation
        if is_lost and not node.is_gone and node.drain_user is None:
            deadline_s = node.notice_deadline_s
            notice_s = 0.0 if deadline_s is None else max(0.0, deadline_s - node.notice_at_s)
            lived_s = change.at_s - node.joined_s
            yield Loss(at_s=change.at_s, node=name, pool=node.pool, lived_s=lived_s, notice_s=notice_s)


def outlook(state: State, job: Job | None, nodes: Iterable[Node], now_s: float) -> Outlook:
    """Return what is to be expected of these nodes, at what cost for the job."""
    config = state.config
    pools = Counter(node.pool for node in nodes)
    seen = [loss for loss in state.losses if loss.pool in pools and loss.at_s > now_s - WINDOW_S]
    rates = [(count, _rate(state, pool, now_s)) for pool, count in sorted(pools.items())]
    total = sum(pools.values())
    per_node_s = sum(count * rate for count, rate in rates) / total if total else estimated(0, 0)
    notices = [loss.notice_s for loss in seen]
    return Outlook(
        losses=LossRate(per_node_s=per_node_s, burst_weights=burst_weights(loss.at_s for loss in seen)),
        horizon_s=config.outlook_horizon_s,
        morph_s=config.morph_s if job is None or job.morph_s is None else job.morph_s,
        replay_s=0.0 if job is None else _replay_s(job),
        notice_s=median_low(notices) if notices else 0.0,
    )


def unmended_s(state: State, nodes: Collection[Node], num_holders: int, now_s: float) -> float:
    """Return the mean time between moments that take all copies of some state.

    Each state is on `num_holders` of the nodes at least; 0: in no copies, so that any loss takes it. Any
    so many nodes count, though most hold different states.
    """
    losses = outlook(state, None, nodes, now_s).losses
    at_least = max(1, num_holders)
    return 1.0 / losses.moments_per_s(len(nodes), at_least=at_least, doubt=BURST_DOUBT if at_least > 1 else 0)


def _rate(state: State, pool: str, now_s: float) -> float:
    since_s = now_s - WINDOW_S
    if len(state.losses) == LOSSES_MAX:
        since_s = max(since_s, state.losses[0].at_s)  # older ones are forgotten
    seen = [loss for loss in state.losses if loss.pool == pool and loss.at_s > since_s]
    ended_s = sum(min(loss.lived_s, loss.at_s - since_s) for loss in seen)
    living = (n for n in state.nodes.values() if n.pool == pool and not n.is_gone)
    return estimated(len(seen), ended_s + sum(now_s - max(n.joined_s, since_s) for n in living))


def burst_weights(lost_at_s: Iterable[float]) -> tuple[float, ...]:
    """Return how often 1, 2, ... nodes were lost at one moment, as if a single one was lost once more.

    `lost_at_s`: the time of each loss, ascending.
    """
    sizes = [1]
    first_s = float("-inf")
    for at_s in lost_at_s:
        if at_s - first_s <= BURST_S:
            sizes[-1] += 1
        else:
            first_s = at_s
            sizes.append(1)
    counts = Counter(sizes)
    return tuple(float(counts[size]) for size in range(1, max(sizes) + 1))


def _replay_s(job: Job) -> float:
    """Return what is trained once more after a loss: half of what lies between two saves, and half a step."""
    step_s = 0.0 if job.plan is None else job.plan.predicted_step_s
    every = job.spec.checkpoint.interval_steps
    between_s = max(SAVE_EVERY_S, step_s) if every == "auto" else every * step_s
    return (between_s + step_s) / 2
