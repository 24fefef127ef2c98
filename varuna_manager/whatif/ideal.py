"""What the pool could give: at every moment the best plan for its nodes, without any morph."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from varuna_manager.whatif.lending import moments
from varuna_manager.whatif.plans import Plans
from varuna_manager.whatif.scenario import Scenario
from varuna_runtime.spec.layout import BatchShape, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best that the nodes of a moment can do; nothing where there is no plan for them."""

    start_s: float
    end_s: float
    num_nodes: int
    samples_per_s: float


def first_batch(scenario: Scenario, plans: Plans) -> BatchShape | None:
    """Return the batch shape of the first plan, which is kept for the whole job; None: there never is one."""
    for moment in moments(scenario.recording, scenario.recording.length_s):
        plan = best_plan(scenario, moment.nodes, None, plans)
        if plan is not None:
            return plan.batch
    return None


def ideal(scenario: Scenario, batch: BatchShape | None, plans: Plans) -> tuple[Best, ...]:
    """Return the best for every moment of the recording."""
    found = []
    for moment in moments(scenario.recording, scenario.recording.length_s):
        plan = best_plan(scenario, moment.nodes, batch, plans) if batch else None
        rate = scenario.spec.batch_size / plan.predicted_step_s if plan else 0.0
        best = Best(
            start_s=moment.start_s,
            end_s=moment.end_s,
            num_nodes=len(moment.nodes),
            samples_per_s=rate,
        )
        found.append(best)
    return tuple(found)


def best_plan(
    scenario: Scenario, nodes: Iterable[str], batch: BatchShape | None, plans: Plans
) -> Plan | None:
    """Return the planner's plan for these nodes, if they are enough."""
    names = tuple(nodes)
    if len(names) < scenario.spec.nodes.min:
        return None
    outcome = plans.plan(scenario.request(names, batch))
    return outcome if isinstance(outcome, Plan) else None


def samples_between(best: Sequence[Best], start_s: float, end_s: float) -> float:
    """Return the samples of the ideal in a time."""
    return sum(max(0.0, min(b.end_s, end_s) - max(b.start_s, start_s)) * b.samples_per_s for b in best)


def node_hours(best: Sequence[Best], end_s: float) -> float:
    """Return how many hours of nodes the pool lent until `end_s`."""
    return sum(max(0.0, min(b.end_s, end_s) - b.start_s) * b.num_nodes for b in best) / 3600
