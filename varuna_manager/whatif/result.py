"""What a replay comes to: one row of figures for each policy."""

from collections.abc import Sequence
from dataclasses import dataclass

from varuna_manager.whatif.ideal import Best, best_plan, first_batch, ideal, node_hours, samples_between
from varuna_manager.whatif.ledger import Course, Doing
from varuna_manager.whatif.lending import moments
from varuna_manager.whatif.ours import replay_ours
from varuna_manager.whatif.paper import replay_paper
from varuna_manager.whatif.plans import Plans
from varuna_manager.whatif.scenario import Ours, Policy, Scenario
from varuna_runtime.spec.layout import Infeasible


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Samples are those that count at the end; goodput and the four shares after it sum to one.

    `slower_share` is what a plan on fewer nodes than there were cost, as while new ones are not warm yet.
    """

    policy: str
    length_s: float
    samples: int
    ideal_samples: float
    goodput: float  # share of the ideal; 0 where the ideal is nothing
    moving_share: float
    parked_share: float
    lost_share: float
    slower_share: float
    samples_per_s: float
    num_morphs: int
    moving_s: float
    parked_s: float
    lost_steps: int
    lost_s: float
    node_hours: float
    cost: float | None  # dollars
    on_demand_cost: float | None  # of as many samples on nodes that stay
    finished_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Several policies on one pool; `refusal` says why there never was a plan, None where there was one."""

    results: tuple[Result, ...]
    courses: tuple[Course, ...]
    best: tuple[Best, ...]
    refusal: Infeasible | None = None


def compare(scenario: Scenario, policies: Sequence[Policy]) -> Comparison:
    """Return how each policy fares on the same recording."""
    plans = Plans()
    batch = first_batch(scenario, plans)
    best = ideal(scenario, batch, plans)
    courses = tuple(
        replay_ours(scenario, policy, plans)
        if isinstance(policy, Ours)
        else replay_paper(scenario, policy, plans, batch)
        for policy in policies
    )
    per_node_hour = _on_demand_samples(scenario, best, plans)
    results = tuple(_result(scenario, course, best, per_node_hour) for course in courses)
    refusal = None if batch else _refusal(scenario, plans)
    return Comparison(results=results, courses=courses, best=best, refusal=refusal)


def _refusal(scenario: Scenario, plans: Plans) -> Infeasible | None:
    """Return why there is no plan for the most nodes that there ever were."""
    pool = scenario.recording
    most = max((moment.nodes for moment in moments(pool, pool.length_s)), key=len)
    outcome = plans.plan(scenario.request(most, None))
    return outcome if isinstance(outcome, Infeasible) else None


def _result(scenario: Scenario, course: Course, best: Sequence[Best], per_node_hour: float) -> Result:
    samples = course.steps * scenario.spec.batch_size
    possible = samples_between(best, 0.0, course.end_s)
    lost = (course.lost_steps + course.begun_steps) * scenario.spec.batch_size
    moving = _possible_while(course, Doing.MOVING, best)
    parked = _possible_while(course, Doing.PARKED, best)
    slower = max(0.0, possible - samples - lost - moving - parked)  # rounding
    hours = node_hours(best, course.end_s)
    return Result(
        policy=course.policy,
        length_s=course.end_s,
        samples=samples,
        ideal_samples=possible,
        goodput=_share(samples, possible),
        moving_share=_share(moving, possible),
        parked_share=_share(parked, possible),
        lost_share=_share(lost, possible),
        slower_share=_share(slower, possible),
        samples_per_s=_share(samples, course.end_s),
        num_morphs=course.num_morphs,
        moving_s=_seconds(course, Doing.MOVING),
        parked_s=_seconds(course, Doing.PARKED),
        lost_steps=course.lost_steps,
        lost_s=course.lost_s,
        node_hours=hours,
        cost=_dollars(hours, scenario.machines.price),
        on_demand_cost=_dollars(_share(samples, per_node_hour), scenario.machines.on_demand_price),
        finished_s=course.finished_s,
    )


def _on_demand_samples(scenario: Scenario, best: Sequence[Best], plans: Plans) -> float:
    """Return the samples of a node hour on a pool that stays, as large as this one was in the mean."""
    length_s = scenario.recording.length_s
    mean = round(_share(node_hours(best, length_s) * 3600, length_s))
    count = max(1, scenario.spec.nodes.min, mean)
    plan = best_plan(scenario, [f"n{i:06d}" for i in range(count)], None, plans)
    return scenario.spec.batch_size / plan.predicted_step_s * 3600 / count if plan else 0.0


def _possible_while(course: Course, doing: Doing, best: Sequence[Best]) -> float:
    return sum(samples_between(best, s.start_s, s.end_s) for s in course.spans if s.doing is doing)


def _seconds(course: Course, doing: Doing) -> float:
    return sum(span.length_s for span in course.spans if span.doing is doing)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _dollars(hours: float, price: float | None) -> float | None:
    return None if price is None else hours * price
