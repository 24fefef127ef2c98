"""What-if: recorded pools replayed against the real core and planner in virtual time. Pure."""

from varuna_manager.whatif.lending import lent
from varuna_manager.whatif.rates import loss_rate
from varuna_manager.whatif.result import Comparison, Result, compare
from varuna_manager.whatif.scenario import Costs, Machines, Ours, Paper, Policy, Scenario

__all__ = [
    "Comparison",
    "Costs",
    "Machines",
    "Ours",
    "Paper",
    "Policy",
    "Result",
    "Scenario",
    "compare",
    "lent",
    "loss_rate",
]
