"""The one generation that trains, and the account of all that did."""

from varuna_manager.core.events import StepDurable
from varuna_manager.core.state import Run
from varuna_manager.whatif.ledger import Ledger
from varuna_manager.whatif.scenario import Costs, Scenario
from varuna_manager.whatif.stretch import Stretch
from varuna_runtime.spec.layout import Plan


class Training:
    """Commits a step every predicted step time until it is halted."""

    def __init__(self, scenario: Scenario, costs: Costs) -> None:
        self._scenario = scenario
        self._costs = costs
        self._told_durable = 0
        self.ledger = Ledger(scenario.model.num_steps)
        self.generation = 0  # that trains, or trained last

    @property
    def is_on(self) -> bool:
        """True if steps are being committed."""
        return self.ledger.stretch is not None

    def begin(self, run: Run, at_s: float) -> Stretch:
        """Train `run` from its first step on."""
        self.generation, self._told_durable = run.number, run.first_step
        stretch = stretch_of(self._scenario, self._costs, run.plan, step=run.first_step, at_s=at_s)
        self.ledger.begin(stretch, layout=str(run.plan.layout), num_nodes=len(run.members))
        return stretch

    def halt(self, generation: int, at_s: float) -> None:
        """Train no longer, if it is that generation which trains."""
        if generation == self.generation:
            self.ledger.halt(at_s)

    def boundary(self, generation: int, at_s: float) -> float | None:
        """Return when that generation can stop between two steps; None: it does not train."""
        stretch = self.ledger.stretch
        return stretch.boundary(at_s) if stretch and generation == self.generation else None

    def newly_durable(self, job: str, at_s: float) -> tuple[StepDurable, ...]:
        """Return the newest save that has ended, once.

        That it is told late is no matter: the core uses it only when something else happens.
        """
        stretch = self.ledger.stretch
        step = stretch.durable(at_s) if stretch else 0
        if step <= self._told_durable:
            return ()
        self._told_durable = step
        return (StepDurable(at_s=at_s, job=job, generation=self.generation, step=step),)


def stretch_of(scenario: Scenario, costs: Costs, plan: Plan, *, step: int, at_s: float) -> Stretch:
    """Return the steps of a plan that begins to train at a time."""
    return Stretch(
        start_s=at_s,
        step=step,
        step_s=plan.predicted_step_s,
        saved_every=scenario.steps_between_saves(plan.predicted_step_s, costs),
        stall_s=costs.save_stall_s,
        write_s=costs.save_write_s,
    )
