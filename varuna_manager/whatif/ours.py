"""The manager's real core and planner on a recorded pool."""

from dataclasses import replace
from functools import partial

from varuna_manager.core import actions as a
from varuna_manager.core import events as e
from varuna_manager.core.phases import WAITING, JobPhase
from varuna_manager.core.state import Run
from varuna_manager.whatif.fleet import Fleet
from varuna_manager.whatif.ledger import Course, Doing
from varuna_manager.whatif.plans import Plans
from varuna_manager.whatif.scenario import Ours, Scenario
from varuna_manager.whatif.training import Training
from varuna_manager.whatif.virtual import VirtualCore

JOB = "job"


def replay_ours(scenario: Scenario, policy: Ours, plans: Plans) -> Course:
    """Return how the core fares on the recording; equal arguments give equal courses."""
    return _Replay(scenario, policy, plans).run()


class _Replay:
    """One job on one pool; the core cannot tell it from a real one."""

    def __init__(self, scenario: Scenario, policy: Ours, plans: Plans) -> None:
        if policy.objective is not None:
            spec = scenario.spec.model_copy(update={"objective": policy.objective})
            scenario = replace(scenario, spec=spec)
        self._scenario = scenario
        self._policy = policy
        self._plans = plans
        self._core = VirtualCore(policy.core, self._obey)
        self._training = Training(scenario, policy.costs)
        self._fleet = Fleet(scenario, policy.costs, self._core, self._training)
        self._end_s = scenario.recording.length_s

    def run(self) -> Course:
        core = self._core
        core.feed(e.ManagerStarted(at_s=0.0, epoch=1))
        for change in self._scenario.recording.changes:
            core.agenda.add(change.at_s, partial(self._fleet.change, change))
        core.agenda.add(0.0, self._submit)  # after the nodes that are there from the beginning
        while (due_s := core.agenda.next_s()) is not None and due_s < self._end_s:
            core.now_s = due_s
            core.feed(*self._training.newly_durable(JOB, due_s))
            core.turn(due_s, self._fleet.beats(due_s))
            self._follow()
            core.schedule_look()
        return self._training.ledger.closed(self._policy.name, self._end_s)

    def _submit(self) -> None:
        submitted = e.JobSubmitted(
            at_s=0.0,
            job=JOB,
            spec=self._scenario.spec,
            model=self._scenario.model,
            bundle="",
            user="simulate",
            request_id=JOB,
        )
        self._core.feed(submitted)

    def _obey(self, action: a.AnyAction) -> None:
        match action:
            case a.FindProfile():
                ready = e.ProfileReady(at_s=self._core.now_s, job=JOB, profile=self._scenario.profile)
                self._core.later(0.0, ready)
            case a.MakePlan():
                self._plan(action)
            case a.Announce() | a.RaiseDurable():
                pass
            case _:
                self._fleet.obey(action)

    def _plan(self, action: a.MakePlan) -> None:
        in_s = self._policy.costs.plan_s
        made = e.PlanMade(
            at_s=self._core.now_s + in_s,
            job=JOB,
            pool_version=action.pool_version,
            outcome=self._plans.plan(action.request),
        )
        self._core.later(in_s, made)

    def _follow(self) -> None:
        """Begin to train when the core says so; else keep account of why nothing trains."""
        job = self._core.state.jobs[JOB]
        if self._training.is_on:
            return
        run = job.run
        if job.phase is JobPhase.RUNNING and run is not None and run.number > self._training.generation:
            self._train(run)
        else:
            doing = Doing.PARKED if job.phase in WAITING else Doing.MOVING
            self._training.ledger.idle(self._core.now_s, doing)

    def _train(self, run: Run) -> None:
        stretch = self._training.begin(run, self._core.now_s)
        num_steps = self._scenario.model.num_steps
        if self._scenario.stops_when_done and num_steps >= run.first_step:
            self._core.agenda.add(stretch.reaches(num_steps), partial(self._done, run.number))

    def _done(self, generation: int) -> None:
        if self._training.is_on and generation == self._training.generation:
            self._end_s = self._core.now_s
