"""Lower bounds on a step for all layouts at once, whatever the cuts, recompute, schedule and placement.

Coarse and cheap: they give the order in which the search looks at layouts, and where it stops.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from varuna_manager.planner.workload import Floats, Workload, transfer_s
from varuna_runtime.spec.profile import LinkCost

Ints = NDArray[np.int64]

FLAT = 1e-6
"""Share of a stage's work in the next one's head below which it counts as none: differences lose digits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """Layouts of one batch shape, one in each row."""

    stages: Ints
    replicas: Ints
    num_micro: Ints  # largest share of a replica, a short one not counted
    speed: Floats  # of the fastest stage of any pool with room
    is_apart: NDArray[np.bool_]  # has more ranks than any unit has slots

    def __len__(self) -> int:
        """Number of layouts."""
        return len(self.stages)


@lru_cache(maxsize=64)
def layout_bound(work: Workload, virtual_replicas: int, *, unit_slots: int, is_split: bool) -> "LayoutBound":
    """Return the bounds of a batch shape, the same object for equal questions."""
    return LayoutBound(work, virtual_replicas, unit_slots=unit_slots, is_split=is_split)


class LayoutBound:
    """The bounds of one batch shape; `unit_slots` is the size of the largest unit of any pool."""

    def __init__(self, work: Workload, virtual_replicas: int, *, unit_slots: int, is_split: bool) -> None:
        self._work, self._virtual, self._is_split = work, virtual_replicas, is_split
        links = (work.cross_node,) if unit_slots == 1 else (work.same_node, work.cross_node)
        inner = work.boundary_bytes[1:-1]
        self._message_bytes = float(inner.min()) if len(inner) else 0.0
        self._hop_s = min(link.latency_s + transfer_s(link, self._message_bytes) for link in links)
        self._unit_slots = unit_slots
        sums = (work.far_sums,) if unit_slots == 1 else (work.near_sums, work.far_sums)
        self._near_s_per_byte = min(one.least_s_per_byte for one in sums)
        self._near = LinkCost(
            latency_s=min(link.latency_s for link in links),
            bandwidth_bps=max(link.bandwidth_bps for link in links),
        )
        # Both ways to a stage and back; of a split backward only what must come before.
        self.way_s = work.forward_s if is_split else work.compute_s

    def step_s(self, rows: Columns, least_micro_s: Floats) -> Floats:
        """Return the bounds; `least_micro_s[P]` is the least work of the busiest of P stages."""
        stages, num_micro = rows.stages, rows.num_micro.astype(np.float64)
        worst = np.maximum.reduce(
            [
                self._there_and_back_s(rows, num_micro),
                self._through_s(rows, num_micro),
                num_micro * least_micro_s[stages] / rows.speed,
                np.where(stages > 1, num_micro * self._serial_s(rows), 0.0),
            ]
        )
        worst = np.maximum(
            worst + self.first_s(*self._reduction_s(rows)), self._with_reduction_s(rows, num_micro)
        )
        return np.asarray(worst + self.last_s(rows))

    def first_s(self, latency_s: Floats | float, byte_s: Floats | float) -> Floats:
        """Return the least reduction of the first stage; no backward of another stage ends after its last."""
        params = 0.0 if self._is_split else float(self._work.param_bytes[1])
        return np.asarray((latency_s + byte_s * params) * (params > 0))

    def peers(self, rows: Columns) -> tuple[Floats, Floats]:
        """Return the latency of the link that reductions use, and what a byte takes at least."""
        near, far = self._near, self._work.cross_node
        return (
            np.where(rows.is_apart, far.latency_s, near.latency_s),
            np.where(rows.is_apart, self._work.far_sums.least_s_per_byte, self._near_s_per_byte),
        )

    def last_s(self, rows: Columns) -> Floats:
        """Return the least time of agreement and optimizer, when all stages have ended."""
        agreement_s = np.where(rows.stages * rows.replicas > 1, 2 * self.peers(rows)[0], 0.0)
        return np.asarray(agreement_s + least_optimizer_s(self._work, rows.stages) / rows.speed)

    def _there_and_back_s(self, rows: Columns, num_micro: Floats) -> Floats:
        work_s = num_micro * self._work.compute_s[-1] / rows.speed
        hop_s = self._hop_s * (1 if self._is_split else 2)
        return telescoped_s(work_s, _least_ratio(self.way_s, self._work.compute_s) / num_micro, hop_s, rows)

    def _with_reduction_s(self, rows: Columns, num_micro: Floats) -> Floats:
        """As above, with the forwards before a stage as its head and its reduction as its tail."""
        work = self._work
        latency_s, byte_s = self._reduction_s(rows)
        work_s = num_micro * work.compute_s[-1] / rows.speed + byte_s * work.param_bytes[-1]
        compute, params = (_most_ratio(costs, work.forward_s) for costs in (work.compute_s, work.param_bytes))
        reduces_all = bool(np.diff(work.param_bytes).min() > 0)
        fixed_s = latency_s * reduces_all
        with np.errstate(invalid="ignore", divide="ignore"):
            head_share = 1 / (
                num_micro * compute + np.nan_to_num(rows.speed * byte_s * params, posinf=np.inf)
            )
        return telescoped_s(work_s, np.nan_to_num(head_share), self._hop_s, rows) + fixed_s

    def _through_s(self, rows: Columns, num_micro: Floats) -> Floats:
        """One micro-batch goes all the way; the last segment then still has the others."""
        compute_s = self.way_s[-1] + (num_micro - 1) * np.diff(self.way_s)[-1]
        return np.asarray(compute_s / rows.speed + 2 * (rows.stages - 1) * self._hop_s)

    def _serial_s(self, rows: Columns) -> Floats:
        """Return the least time of a message on the busiest boundary; some cross if a replica is apart."""
        near_s, far_s = (
            transfer_s(link, self._message_bytes) for link in (self._near, self._work.cross_node)
        )
        return np.where(rows.stages > self._unit_slots, far_s, near_s)

    def _reduction_s(self, rows: Columns) -> tuple[Floats, Floats]:
        """Return the least time of a reduction: latencies, and seconds per parameter byte."""
        latency_s, byte_s = self.peers(rows)
        return 2 * (rows.replicas - 1) * latency_s, byte_s * least_volume(self._virtual, rows.replicas)


def telescoped_s(work_s: Floats, head_share: Floats, hop_s: float, rows: Columns) -> Floats:
    """Return the least T that work w, cut into stages w_s, allows if every stage needs at most T.

    Stage s needs w_s, `head_share` of all work before it, and s hops. Weighted with (1 - share)^(P - 1 - s)
    the sum over stages is w plus the hops.
    """
    stages = rows.stages.astype(np.float64)
    share = np.where(head_share < FLAT, FLAT, np.minimum(head_share, 1.0))
    with np.errstate(divide="ignore"):
        weights = -np.expm1(stages * np.log1p(-share)) / share
    hops = (stages - weights) / share
    is_flat = head_share < FLAT
    weights = np.where(is_flat, stages, weights)
    hops = np.where(is_flat, stages * (stages - 1) / 2, hops)
    return np.asarray((work_s + hop_s * hops) / weights)


def least_volume(virtual_replicas: int, replicas: Ints) -> Floats:
    """Return a lower bound on `reduction_volume`: two sums where equal aligned shares cannot be had."""
    is_power = virtual_replicas & (virtual_replicas - 1) == 0
    is_uneven = (virtual_replicas % replicas > 0) & (2 * replicas <= virtual_replicas) & is_power
    return np.asarray((2 + is_uneven) * (replicas - 1) / replicas)


def least_optimizer_s(work: Workload, stages: Ints) -> Floats:
    """Return the least time of the slowest optimizer step."""
    largest = float(np.diff(work.param_bytes).max())
    least = np.maximum(largest, work.param_bytes[-1] / stages)
    return np.asarray(least * work.optimizer_step_s_per_byte)


def _least_ratio(costs: Floats, of: Floats) -> float:
    return float((costs[1:] / of[1:]).min()) if of[1] > 0 else 0.0


def _most_ratio(costs: Floats, of: Floats) -> float:
    return float((costs[1:] / of[1:]).max()) if of[1] > 0 else float("inf")
