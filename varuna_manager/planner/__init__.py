"""Pure planning: profile and nodes in, Plan or Infeasible out."""

from varuna_manager.planner.planning import plan
from varuna_manager.planner.request import (
    Explanation,
    PlannableNode,
    PlanOutcome,
    PlanRequest,
    Rival,
    StageLine,
)
from varuna_manager.planner.simulate import Simulation, Spread, quantiles, simulate

__all__ = [
    "Explanation",
    "PlanOutcome",
    "PlanRequest",
    "PlannableNode",
    "Rival",
    "Simulation",
    "Spread",
    "StageLine",
    "plan",
    "quantiles",
    "simulate",
]
