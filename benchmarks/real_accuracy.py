"""A real GPT on two cores: profiled as at a job's first start, predicted as the planner does, measured."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import torch

from benchmarks import ours
from benchmarks.emulated_accuracy import PROBED_BYTES, probe_name, probed_link, probing
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
from varuna_manager.planner.simulate import simulate
from varuna_manager.planner.workload import workload
from varuna_runtime.partition import cut
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.layout import Layout, ScheduleKind
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

    def __str__(self) -> str:
        """Return it for a table."""
        again = " recompute" if self.way.recompute else ""
        name = f"P={self.layout.stages} D={self.layout.replicas} {self.way.schedule}{again}"
        return f"{name}: {self.num_micro} x {ROWS} rows"


def steps() -> tuple[Step, ...]:
    """Return what is measured."""
    whole, split = ours.Way(schedule=ScheduleKind.ONE_F_ONE_B), ours.Way(schedule=ScheduleKind.ZERO_BUBBLE)
    keen, gpipe = ours.Way(schedule=ScheduleKind.WORK_CONSERVING), ours.Way(schedule=ScheduleKind.GPIPE)
    again, apart = replace(whole, recompute=True), replace(whole, replicas=2)
    ways = {1: (whole,), 4: (whole, split), 8: (whole, keen, split, gpipe, again, apart), 16: (whole, apart)}
    return tuple(Step(num_micro=n, way=way) for n, those in ways.items() for way in those)


def case(options: Options) -> Case:
    """Profile on both ranks at once, as their steps will run, then predict and measure."""
    found = Case(
        name="real",
        title="a GPT on two cores, loopback",
        settings=f"sequence {SEQUENCE}, {ROWS} rows a micro-batch, AdamW, one thread a rank",
    )
    samples = Samples()
    chosen = {str(step): step for step in steps()[:: QUICK if options.quick else 1]}
    with Loopback(RANKS) as network, Ranks(network, _build, timeout_s=120.0) as ranks:
        options.say(" profile")
        profiles: tuple[Profile, ...] = ranks.run(PROFILE).values
        link = probed_link(ranks)
        for name in chosen:
            ranks.run(name, -1)
        for round_, name, run in in_turns(ranks, list(chosen), options.rounds(7)):
            options.keep(samples, round_, name, run)
    rows = []
    for name, step in chosen.items():
        spread = samples.step(name)
        predicted = fmean(_predicted_s(step, profile, link) for profile in profiles)
        row = Predicted(layout=step.layout, predicted_s=predicted, measured_s=spread.median)
        rows.append(row)
        found.rows.append(Row(name=name, step_s=spread, shares={"predicted": predicted, "error": row.error}))
    found.claims = [
        Claim(text="mean error", value=Spread.of([mean_error(rows)]), target=0.05, at_most=True),
    ]
    found.notes = [f"max error {max_error(rows):.3f}", samples.noise()]
    return found


def _predicted_s(step: Step, profile: Profile, link: LinkCost) -> float:
    here = replace(profile, same_node=link, cross_node=link)
    num_segments = len(here.by_micro_batch[0].segments)
    candidate = pipeline(
        workload(here, ROWS),
        ModelRecord(segments=(), tied=(), num_samples=1, num_steps=1),  # its head is not tied
        ours.batch_of(step.num_micro * ROWS, step.num_micro, RANKS),
        POOL,
        layout=step.layout,
        schedule=step.way.schedule,
        stages=ours.stages_of(step.layout.stages, num_segments, step.way),
    )
    return simulate(candidate).step_s


def _build(place: Place) -> Mapping[str, Runner]:
    link = Joined.at(place).link
    runners: dict[str, Runner] = {probe_name(n): probing(link, n) for n in PROBED_BYTES}
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
        runners[str(step)] = partial(_quiet, engine)
    return runners


def _quiet(engine: RankEngine, _: int) -> None:
    engine.run_step()


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
