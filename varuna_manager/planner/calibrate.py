"""A cost model from a few measured steps: what a model and its network cost, what other layouts would take.

Owns the model behind `benchmarks.accuracy --measured`. Four physical costs, none of them per layout.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from varuna_manager.planner.pipeline import Boundary, Pipeline, StageTiming
from varuna_manager.planner.simulate import simulate
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.layout import Layout, ScheduleKind

ROWS_MAX = 3  # that a calibration takes
_ROUNDS = 50  # of Gauss-Newton; it converges in fewer than ten
_SAME = 1e-9  # misfits that differ by less are equal
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What is known of a training without measuring it."""

    batch_size: int  # samples of a global step
    micro_batch_size: int
    num_segments: int | None = None  # equal ones; None: the work divides evenly into any number of stages

    def micro_batches(self, replicas: int) -> float:
        """Return the mean share of a replica."""
        return self.batch_size / (self.micro_batch_size * replicas)

    def largest_share(self, stages: int) -> float:
        """Return the part of the model in the largest stage."""
        if self.num_segments is None:
            return 1.0 / stages
        return ceil(self.num_segments / stages) / self.num_segments


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A layout and what its step took."""

    layout: Layout
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds. All scale with the size of a micro-batch or of the model, none with the layout."""

    compute_s: float  # one micro-batch through the whole model, forward and backward
    exchange_s: float = 0.0  # what a stage is held up by its messages, per micro-batch
    reduction_s: float = 0.0  # the whole model's gradients over one link, once
    fixed_s: float = 0.0  # once a step


def corners(rows: Iterable[MeasuredStep]) -> tuple[MeasuredStep, ...]:
    """Return at most three rows that span the layouts: no look at what they took.

    Fewest replicas with fewest stages: the compute. Fewest replicas with most stages: the exchange. Most
    replicas with fewest stages: the reduction.
    """
    shallow = sorted(rows, key=lambda row: (row.layout.replicas, row.layout.stages))
    deep = sorted(shallow, key=lambda row: (row.layout.replicas, -row.layout.stages))
    wide = sorted(shallow, key=lambda row: (-row.layout.replicas, row.layout.stages))
    return tuple(dict.fromkeys(order[0] for order in (shallow, deep, wide) if order))


def calibrated(training: Training, rows: Sequence[MeasuredStep]) -> Costs:
    """Return the costs, none negative, with the least sum of squares of log(predicted / measured).

    A cost that the rows do not tell is zero; of those they cannot tell apart, the later in `Costs`. Raises
    InvalidInput without rows.
    """
    if not rows:
        raise InvalidInput("calibration: seen no measured step, wanted at least one")
    terms = np.array([_terms(training, row.layout) for row in rows])
    measured = np.array([row.step_s for row in rows])
    choices = (
        (0, *more) for n in range(terms.shape[1]) for more in combinations(range(1, terms.shape[1]), n)
    )
    fits = (
        (_misfit(terms, measured, found), len(chosen), found)
        for chosen in choices
        if (found := _fitted(terms, measured, chosen)) is not None
    )
    _, _, found = min(fits, key=lambda fit: (round(fit[0] / _SAME), fit[1]))
    compute_s, exchange_s, reduction_s, fixed_s = map(float, found)
    return Costs(compute_s=compute_s, exchange_s=exchange_s, reduction_s=reduction_s, fixed_s=fixed_s)


def closed_form_s(training: Training, costs: Costs, layout: Layout) -> float:
    """Return the step time of a pipeline that fills, runs at the pace of its largest stage, and reduces."""
    known = np.array([costs.compute_s, costs.exchange_s, costs.reduction_s, costs.fixed_s])
    return float(np.dot(_terms(training, layout), known))


def predicted_s(training: Training, costs: Costs, layout: Layout) -> float:
    """Return what the simulator says; between two whole numbers of micro-batches, between its two answers."""
    mean = training.micro_batches(layout.replicas)
    below = max(floor(mean), 1)
    step_s = simulate(pipeline_of(training, costs, layout, num_micro=below)).step_s
    if mean <= below:
        return step_s
    above_s = simulate(pipeline_of(training, costs, layout, num_micro=below + 1)).step_s
    return step_s + (mean - below) * (above_s - step_s)


def pipeline_of(training: Training, costs: Costs, layout: Layout, *, num_micro: int) -> Pipeline:
    """Return the candidate: 1F1B, whose stages wait for their own messages, the largest stages first."""
    stages = tuple(_stage(costs, share, layout) for share in _shares_of_stages(training, layout.stages))
    return Pipeline(
        schedule=ScheduleKind.ONE_F_ONE_B,
        stages=stages,
        boundaries=(Boundary(serial_s=0.0, latency_s=0.0),) * (layout.stages - 1),
        micro_batches=(num_micro,) * layout.replicas,
        agreement_s=costs.fixed_s,
    )


def _stage(costs: Costs, share: float, layout: Layout) -> StageTiming:
    held_up_s = costs.exchange_s if layout.stages > 1 else 0.0
    forward_s = share * costs.compute_s / 3 + held_up_s / 2
    return StageTiming(
        forward_s=forward_s,
        backward_s=share * costs.compute_s + held_up_s - forward_s,
        recompute=False,
        reduction_s=costs.reduction_s * share * _ring(layout.replicas),
        optimizer_s=0.0,
    )


def _shares_of_stages(training: Training, stages: int) -> list[float]:
    if training.num_segments is None:
        return [1.0 / stages] * stages
    fewest, larger = divmod(training.num_segments, stages)
    return [(fewest + (s < larger)) / training.num_segments for s in range(stages)]


def _terms(training: Training, layout: Layout) -> Floats:
    """Return what each of the costs counts for in a step."""
    num_micro = max(training.micro_batches(layout.replicas), 1.0)
    share = training.largest_share(layout.stages)
    compute = 1.0 + (num_micro - 1.0) * share
    exchange = num_micro - 1.0 + layout.stages if layout.stages > 1 else 0.0
    return np.array([compute, exchange, share * _ring(layout.replicas), 1.0])


def _ring(replicas: int) -> float:
    """Return how often a ring sends each byte over a link."""
    return 2.0 * (replicas - 1) / replicas


def _fitted(terms: Floats, measured: Floats, chosen: tuple[int, ...]) -> Floats | None:
    """Return all costs, those not `chosen` zero; None where the rows do not tell them or one is negative."""
    columns = terms[:, chosen] / measured[:, None]
    if np.linalg.matrix_rank(columns) < len(chosen):
        return None
    costs = np.linalg.lstsq(columns, np.ones(len(measured)), rcond=None)[0]
    for _ in range(_ROUNDS):
        if (costs <= 0).any():
            return None
        predicted = columns @ costs
        costs = costs - np.linalg.lstsq(columns / predicted[:, None], np.log(predicted), rcond=None)[0]
    if (costs <= 0).any():
        return None
    every = np.zeros(terms.shape[1])
    every[list(chosen)] = costs
    return every


def _misfit(terms: Floats, measured: Floats, costs: Floats) -> float:
    return float(np.sum(np.log(terms @ costs / measured) ** 2))
