"""A real GPT on two cores: every layout predicted as the planner does, and measured.

It is profiled as at a first start, and the profile refreshed by the steps of one layout, as a manager does
while a job runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from benchmarks import ours
from benchmarks.emulated_accuracy import LINK, measuring
from benchmarks.joined import Joined
from benchmarks.measure import Case, Claim, Row, Samples, Spread
from benchmarks.options import Options
from benchmarks.ranking import Predicted, max_error, mean_error
from benchmarks.real_case import ROWS, SEQUENCE, adamw, gpt, loss
from benchmarks.testbed import Loopback, Place, Ranks, Runner, in_turns
from examples.gpt.model import NUM_BYTES
from tests.support.planning import nodes
from varuna_manager.planner.pipeline import pipeline
from varuna_manager.planner.pools import pools
from varuna_manager.planner.refresh import paces, refreshed
from varuna_manager.planner.simulate import simulate
from varuna_manager.planner.workload import workload
from varuna_runtime.partition import cut
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.layout import Layout, Plan, ScheduleKind
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import LinkCost, Profile
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.profiling import measure
from varuna_runtime.worker.training import Training

RANKS = 2
PROFILE = "profile"
QUICK = 4  # every so manieth layout when it has to be quick
(POOL,) = pools(nodes(RANKS, memory_bytes=1 << 40), RANKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One layout of the GPT."""

    num_micro: int
    way: ours.Way

    @property
    def layout(self) -> Layout:
        """All ranks take part."""
        return Layout(stages=RANKS // self.way.replicas, replicas=self.way.replicas)

    def plan(self, num_segments: int) -> Plan:
        """Return what it runs."""
        return ours.plan_of(
            self.way,
            world_size=RANKS,
            num_segments=num_segments,
            num_rows=self.num_micro * ROWS,
            num_micro=self.num_micro,
        )

    def __str__(self) -> str:
        """Return it for a table."""
        again = " recompute" if self.way.recompute else ""
        name = f"P={self.layout.stages} D={self.layout.replicas} {self.way.schedule}{again}"
        return f"{name}: {self.num_micro} x {ROWS} rows"


REFRESHING = Step(num_micro=8, way=ours.Way(schedule=ScheduleKind.ONE_F_ONE_B))
REFRESHING_STEPS = 9


def steps() -> tuple[Step, ...]:
    """Return what is measured."""
    whole, split = ours.Way(schedule=ScheduleKind.ONE_F_ONE_B), ours.Way(schedule=ScheduleKind.ZERO_BUBBLE)
    keen, gpipe = ours.Way(schedule=ScheduleKind.WORK_CONSERVING), ours.Way(schedule=ScheduleKind.GPIPE)
    again, apart = replace(whole, recompute=True), replace(whole, replicas=2)
    ways = {1: (whole,), 4: (whole, split), 8: (whole, keen, split, gpipe, again, apart), 16: (whole, apart)}
    return tuple(Step(num_micro=n, way=way) for n, those in ways.items() for way in those)


def case(options: Options) -> Case:
    """Profile on both ranks at once, as their steps will run, refresh, then predict and measure."""
    found = Case(
        name="real",
        title="a GPT on two cores, loopback",
        settings=f"sequence {SEQUENCE}, {ROWS} rows a micro-batch, AdamW, one thread a rank",
    )
    samples = Samples()
    chosen = {str(step): step for step in steps()[:: QUICK if options.quick else 1]}
    with Loopback(RANKS) as network, Ranks(network, _build, timeout_s=120.0) as ranks:
        options.say(" profile")
        profile: Profile = ranks.run(PROFILE).values[0]
        link: LinkCost = ranks.run(LINK).values[0]
        for name in {str(REFRESHING), *chosen}:
            ranks.run(name, -1)
        busy_s = [ranks.run(str(REFRESHING), -1).values for _ in range(REFRESHING_STEPS)]
        for round_, name, run in in_turns(ranks, list(chosen), options.rounds(7)):
            options.keep(samples, round_, name, run)
    ran = REFRESHING.plan(len(profile.by_micro_batch[0].segments))
    found_paces = paces(profile, ran, dict(enumerate(zip(*busy_s, strict=True))))
    fitted = refreshed(profile, ran, found_paces.stages, by=str(REFRESHING))
    rows, early = [], []
    for name, step in chosen.items():
        spread = samples.step(name)
        row, before = (
            Predicted(
                layout=step.layout, predicted_s=_predicted_s(step, known, link), measured_s=spread.median
            )
            for known in (fitted, profile)
        )
        rows.append(row)
        early.append(before)
        shares = {"predicted": row.predicted_s, "error": row.error, "error as profiled": before.error}
        found.rows.append(Row(name=name, step_s=spread, shares=shares))
    found.claims = [
        Claim(text="mean error", value=Spread.of([mean_error(rows)]), target=0.05, at_most=True),
    ]
    found.notes = [
        f"max error {max_error(rows):.3f}",
        f"as profiled: mean error {mean_error(early):.3f}, max {max_error(early):.3f}",
        f"refreshed by {REFRESHING_STEPS} steps of {REFRESHING}: "
        f"its stages took {', '.join(f'{pace:.2f}' for pace in found_paces.stages)} of the profile's times",
        samples.noise(),
    ]
    return found


def _predicted_s(step: Step, profile: Profile, link: LinkCost) -> float:
    here = replace(profile, same_node=link, cross_node=link)
    plan = step.plan(len(here.by_micro_batch[0].segments))
    candidate = pipeline(
        workload(here, ROWS),
        ModelRecord(segments=(), tied=(), num_samples=1, num_steps=1),  # its head is not tied
        plan.batch,
        POOL,
        layout=plan.layout,
        schedule=plan.schedule,
        stages=plan.stages,
    )
    return simulate(candidate).step_s


def _build(place: Place) -> Mapping[str, Runner]:
    link = Joined.at(place).link
    runners: dict[str, Runner] = {LINK: measuring(link)}
    runners[PROFILE] = lambda _: _profile(_training(ROWS))
    for step in steps():
        training = _training(step.num_micro * ROWS)
        engine = ours.engine_of(
            link,
            step.way,
            world_size=RANKS,
            modules=training.model,
            loss=training.loss,
            inputs=training.dataset.inputs,
            targets=training.dataset.targets,
            num_micro=step.num_micro,
            optimizer=training.optimizer,
        )
        runners[str(step)] = partial(_busy_s, engine)
    return runners


def _busy_s(engine: RankEngine, _: int) -> float:
    """Run a step and return what its ops took per micro-batch, as a rank tells its manager."""
    engine.run_step()
    return engine.busy.seconds * ROWS / engine.busy.num_samples


def _training(num_rows: int) -> Training:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(NUM_BYTES, (num_rows, SEQUENCE + 1), generator=generator)
    return ours.training_of(
        modules=gpt,
        loss=lambda output, batch: loss(output, batch[1]),
        inputs=tokens[:, :-1].contiguous(),
        targets=tokens[:, 1:].contiguous(),
        optimizer=adamw,
    )


def _profile(training: Training) -> Profile:
    spec = JobSpec(
        name="accuracy", entrypoint="none.py", batch_size=training.batch_size, micro_batch_size=ROWS, steps=1
    )
    return measure(training, cut(training.model), spec, torch.device("cpu"))
