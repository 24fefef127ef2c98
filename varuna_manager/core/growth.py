"""Whether a job moves to a larger pool, and when: what is gained until the next loss against a morph's cost.

A newcomer may be gone as soon as it came. So the lives of nodes that were lost before it are compared with
its age: it pays to let it live through the short ones, if it is likely enough that it ends one of them.
"""

from collections.abc import Sequence
from math import expm1

from varuna_manager.core.outlook import outlook
from varuna_manager.core.state import Job, Node, Run, State
from varuna_runtime.spec.layout import Plan


def best_wait_s(state: State, job: Job, run: Run, larger: Plan, now_s: float) -> float | None:
    """Return how long to wait before the morph to `larger`, a faster plan; None: it is not worth one.

    Of all moments at which an earlier node's life was over, and now, the one with most expected samples.
    """
    newcomers = [state.nodes[name] for name in larger.nodes if name not in run.members]
    members = [state.nodes[name] for name in run.members]
    if not newcomers or larger.predicted_step_s <= 0:
        return 0.0
    lives_s, num_lasting = _lives(state, newcomers, members, now_s)
    expected = outlook(state, job, members, now_s)
    losses = expected.losses
    until_s = _quiet_s(losses.per_node_s * len(members) / losses.mean_burst, expected.horizon_s)
    faster = run.plan.predicted_step_s / larger.predicted_step_s - 1

    def gained(wait_s: float) -> float:
        """Seconds of training over all lives that are compared; those that end first cost nothing."""
        ended = (
            faster * (min(life_s, until_s) - wait_s)
            - expected.morph_s
            - (expected.pause_s if life_s < until_s else 0.0)
            for life_s in lives_s
            if life_s > wait_s
        )
        return sum(ended) + num_lasting * (faster * (until_s - wait_s) - expected.morph_s)

    wait_s = max([0.0, *sorted(life_s for life_s in lives_s if life_s < until_s)], key=gained)
    return wait_s if gained(wait_s) > 0 else None


def _lives(
    state: State, newcomers: Sequence[Node], members: Sequence[Node], now_s: float
) -> tuple[list[float], int]:
    """Return for how long the youngest would live on if it lived as long as others did, and how many last.

    Others are itself, where it was lost before, else all of its pools. One is always taken to last.
    """
    age_s = now_s - max(node.joined_s for node in newcomers)
    names, pools = {node.node for node in newcomers}, {node.pool for node in newcomers}
    own = [loss for loss in state.losses if loss.node in names]
    seen = own or [loss for loss in state.losses if loss.pool in pools]
    num_lasting = 1 if own else 1 + sum(node.pool in pools for node in members)
    return [loss.lived_s - age_s for loss in seen if loss.lived_s > age_s], num_lasting


def _quiet_s(moments_per_s: float, horizon_s: float) -> float:
    """Return the time until the next loss, at most the horizon, in the mean; a loss costs a morph anyway."""
    if moments_per_s * horizon_s < 1e-9:
        return horizon_s
    return -expm1(-moments_per_s * horizon_s) / moments_per_s
