"""Draws of model, layout, schedule and batch shape, and the run of each against the plain loop."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from tests.support import toys
from tests.support.fleet import Fleet, plan_of
from tests.support.truth import Example, Truth, differences, truth_of
from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec.job import Precision
from varuna_runtime.spec.layout import BatchShape, Plan, ScheduleKind, Stage
from varuna_runtime.worker.partitioning import partition_of
from varuna_runtime.worker.training import Training

ROWS = 2  # of a micro-batch
NUM_STEPS = 2
STAGES, MICRO_BATCHES, REPLICAS = 5, 6, 3  # the most that is drawn of each
CAPPED = (ScheduleKind.WORK_CONSERVING, ScheduleKind.ZERO_BUBBLE)  # any cap will do for these
GRID = len(ScheduleKind) * STAGES * MICRO_BATCHES


def _sequence(parts: int) -> dict[str, int]:
    return {str(index): index + 1 for index in range(parts - 1)}


TOYS: dict[str, Example] = {
    "tied": Example(
        lambda **changes: toys.tied_training(model=lambda: toys.tied_language_model(3), **changes),
        _sequence(5),
        copies={"4.weight": "0.table.weight"},
    ),
    "dropout": Example(toys.mlp_training, _sequence(5)),
    "convolutions": Example(toys.image_training, _sequence(5)),
}


@dataclass(frozen=True, slots=True)
class Combination:
    """Everything one run depends on; `order` seeds which rank runs next."""

    model: str
    stages: tuple[Stage, ...]  # cut anywhere, each with a recompute and a cap on micro-batches of its own
    replicas: int
    num_micro: int
    virtual_replicas: int
    schedule: ScheduleKind
    precision: Precision
    is_ragged: bool
    shards: bool  # the optimizer's state, over the replicas
    order: int

    @property
    def layout(self) -> str:
        return f"{len(self.stages)}x{self.replicas}"

    @property
    def batch(self) -> BatchShape:
        return BatchShape(
            batch_size=ROWS * self.num_micro - self.is_ragged,
            micro_batch_size=ROWS,
            virtual_replicas=self.virtual_replicas,
        )


def drawn(seed: int, models: Mapping[str, Example], segments: Mapping[str, int]) -> Combination:
    """Return the combination of a seed; `GRID` seeds in a row meet every schedule with every P and M once."""
    draw = random.Random(seed)
    rest, kind = divmod(seed, len(ScheduleKind))
    num_micro, num_stages = 1 + rest % MICRO_BATCHES, 1 + rest // MICRO_BATCHES % STAGES
    model = draw.choice(sorted(models))
    num_stages = min(num_stages, segments[model])
    schedule = list(ScheduleKind)[kind]
    replicas = draw.randint(1, min(REPLICAS, num_micro))
    edges = (0, *sorted(draw.sample(range(1, segments[model]), num_stages - 1)), segments[model])
    return Combination(
        model=model,
        stages=tuple(
            Stage(
                first=first,
                last=last,
                recompute=draw.random() < 0.5,
                in_flight=_in_flight(draw, schedule, num_stages - s, num_micro),
            )
            for s, (first, last) in enumerate(pairwise(edges))
        ),
        replicas=replicas,
        num_micro=num_micro,
        virtual_replicas=draw.randint(replicas, num_micro),
        schedule=schedule,
        precision=draw.choice(list(Precision)),
        is_ragged=draw.random() < 0.4,
        shards=draw.random() < 0.3,
        order=draw.randrange(2**16),
    )


def _in_flight(draw: random.Random, schedule: ScheduleKind, stages_left: int, num_micro: int) -> int:
    """Return a cap: any for a rule, by nature or as many as the planner gives for eager 1F1B."""
    if schedule in CAPPED:
        return draw.choice((0, draw.randint(1, num_micro)))
    wide = 1 + 5 * (stages_left - 1) // 2
    return wide if schedule is ScheduleKind.EAGER and num_micro % 2 else 0


class Examples:
    """Models cut once, and the truth of each batch shape found once."""

    def __init__(self, models: Mapping[str, Example]) -> None:
        self.models = models
        self.model = lru_cache(self._cut)
        self.truth = lru_cache(self._truth)

    def drawn(self, seed: int) -> Combination:
        """Return the combination of a seed."""
        return drawn(seed, self.models, {name: self.model(name).num_segments for name in self.models})

    def training(self, name: str, batch_size: int) -> Training:
        """Return a training with steps of that many samples."""
        return self.models[name].training(batch_size=batch_size)

    def faults(self, drawn: Combination) -> list[str]:
        """Run a combination with all ranks in this process; return what differs from the plain loop."""
        ran = self.fleet(drawn).train(NUM_STEPS, seed=drawn.order)
        return differences(ran, self.truth(drawn.model, drawn.batch, drawn.precision))

    def fleet(self, drawn: Combination) -> Fleet:
        """Return the ranks of a combination, before their first step."""
        return Fleet(
            self.training(drawn.model, drawn.batch.batch_size),
            self.plan(drawn),
            precision=drawn.precision,
            shard_optimizer=drawn.shards,
            model=self.model(drawn.model),
        )

    def plan(self, drawn: Combination) -> Plan:
        """Return the plan of a combination."""
        return plan_of(
            drawn.layout,
            num_segments=drawn.stages[-1].last,
            batch=drawn.batch,
            schedule=drawn.schedule,
            stages=drawn.stages,
        )

    def _cut(self, name: str) -> PartitionedModel:
        return partition_of(self.training(name, ROWS))

    def _truth(self, name: str, batch: BatchShape, precision: Precision) -> Truth:
        training = self.training(name, batch.batch_size)
        return truth_of(self.models[name], training, self.model(name), batch, NUM_STEPS, precision=precision)
