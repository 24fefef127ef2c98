"""The paper's manager on a recorded pool: no core, a restart at every change."""

from collections import Counter
from collections.abc import Iterable

from varuna_manager.traces import Change
from varuna_manager.whatif.ledger import Course, Doing, Ledger
from varuna_manager.whatif.plans import Plans
from varuna_manager.whatif.scenario import Paper, Scenario
from varuna_manager.whatif.training import stretch_of
from varuna_runtime.spec.layout import BatchShape, Plan
from varuna_runtime.spec.model import ModelRecord


def replay_paper(scenario: Scenario, policy: Paper, plans: Plans, batch: BatchShape | None) -> Course:
    """Return how the policy fares on the recording; `batch` is None if no plan was ever possible."""
    costs = policy.costs
    ledger = Ledger(scenario.model.num_steps)
    warm_s: dict[str, float] = {}  # of the nodes that are present: from when on they can start
    changes = scenario.recording.changes
    end_s = scenario.recording.length_s
    ends = [*(change.at_s for change in changes), end_s][1:]
    for change, until_s in zip(changes, ends, strict=True):
        _stop(ledger, change)
        for node in change.left:
            del warm_s[node]
        warm_s.update(dict.fromkeys(change.joined, change.at_s + costs.warm_s))
        plan = equal_stages(scenario, warm_s, batch, plans) if batch is not None else None
        ledger.idle(change.at_s, Doing.PARKED if plan is None else Doing.MOVING)
        if plan is None:
            continue
        start_s = max(change.at_s, *(warm_s[node] for node in plan.nodes)) + costs.morph_s
        if start_s >= until_s:
            continue
        stretch = stretch_of(scenario, costs, plan, step=ledger.durable, at_s=start_s)
        ledger.begin(stretch, layout=str(plan.layout), num_nodes=len(plan.nodes))
        done_s = stretch.reaches(max(stretch.step, scenario.model.num_steps))
        if scenario.stops_when_done and done_s <= until_s:
            end_s = done_s
            break
    return ledger.closed(policy.name, end_s)


def _stop(ledger: Ledger, change: Change) -> None:
    """Stop at a change; nothing is lost where nodes only came."""
    if ledger.stretch is None:
        return
    ledger.halt(change.at_s)
    if not change.left:
        ledger.save()


def equal_stages(scenario: Scenario, nodes: Iterable[str], batch: BatchShape, plans: Plans) -> Plan | None:
    """Return the fastest plan whose P divides the number of equal blocks of the model."""
    names = sorted(nodes)
    if len(names) < scenario.spec.nodes.min:
        return None
    blocks = equal_blocks(scenario.model)
    answers = [
        plans.plan(scenario.request(names, batch, stages=stages))
        for stages in range(1, blocks + 1)
        if blocks % stages == 0 and scenario.spec.layout.stages in ("auto", stages)
    ]
    feasible = [plan for plan in answers if isinstance(plan, Plan)]
    return min(feasible, key=lambda plan: (plan.predicted_step_s, plan.layout.stages), default=None)


def equal_blocks(model: ModelRecord) -> int:
    """Return how many segments the most frequent kind of segment has."""
    kinds = Counter(
        tuple((tensor.shape, tensor.dtype) for tensor in segment.tensors) for segment in model.segments
    )
    return max(kinds.values(), default=1)
