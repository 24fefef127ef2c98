"""All ranks of a layout in this process, driven in a seeded order."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from tests.support.driver import drive
from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec.job import Exactness, Precision
from varuna_runtime.spec.layout import BatchShape, Layout, Plan, ScheduleKind, Slot, Stage
from varuna_runtime.spec.manifest import LossRecord, TrainerState
from varuna_runtime.spec.pieces import PieceName
from varuna_runtime.spec.reduction import share
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.link.memory import MemoryNetwork
from varuna_runtime.worker.partitioning import partition_of
from varuna_runtime.worker.signals import Drain, StepDone
from varuna_runtime.worker.training import ResolvedTraining, Training


def plan_of(
    layout: str,
    *,
    num_segments: int,
    batch: BatchShape,
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B,
    recompute: bool = False,
    stages: Sequence[Stage] | None = None,
) -> Plan:
    """A plan of these stages, or of even ones, of which the last never recomputes."""
    num_stages, replicas = (int(n) for n in layout.split("x"))
    if stages is None:
        shares = [share(num_segments, num_stages, s) for s in range(num_stages)]
        stages = [
            Stage(first=part.start, last=part.stop, recompute=recompute and part is not shares[-1])
            for part in shares
        ]
    return Plan(
        layout=Layout(stages=num_stages, replicas=replicas),
        stages=tuple(stages),
        schedule=schedule,
        batch=batch,
        placement=tuple(Slot(node=f"n{r}", index=0) for r in range(num_stages * replicas)),
        predicted_step_s=1.0,
    )


def settings_of(
    training: Training,
    batch: BatchShape,
    *,
    precision: Precision = Precision.FP32,
    exactness: Exactness = Exactness.BITWISE,
    total_samples: int | None = None,
    **options: Any,
) -> ResolvedTraining:
    """Settings as a job file without surprises gives them."""
    return ResolvedTraining(
        batch_size=batch.batch_size,
        batch=batch,
        seed=training.seed,
        num_samples=len(training.dataset),
        num_steps=training.steps or 1,
        total_samples=total_samples,
        clip_grad_norm=training.clip_grad_norm,
        precision=precision,
        exactness=exactness,
        threads=1,
        shuffle=training.shuffle,
        **options,
    )


# What a stepper returns that drives something other than steps to its end.
NO_STEP = StepDone(
    record=LossRecord(step=0, loss_hex="0x0p+0", weight=1.0, samples=1),
    loss=0.0,
    grad_norm=0.0,
    learning_rate=0.0,
    drain=Drain.NONE,
    checkpoint=False,
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that must be equal on every layout."""

    tensors: dict[str, Tensor]
    trainer: TrainerState
    steps: tuple[StepDone, ...]


class Fleet:
    """The engines of one layout."""

    def __init__(
        self,
        training: Training,
        layout: str | Plan,
        *,
        micro_batch_size: int = 2,
        virtual_replicas: int = 4,
        schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B,
        recompute: bool = False,
        precision: Precision = Precision.FP32,
        exactness: Exactness = Exactness.BITWISE,
        total_samples: int | None = None,
        model: PartitionedModel | None = None,
        **options: Any,  # more of ResolvedTraining
    ) -> None:
        """Take a plan, or `PxD` and what is to be even about it."""
        model = model or partition_of(training)
        if isinstance(layout, str):
            batch = BatchShape(
                batch_size=training.batch_size,
                micro_batch_size=micro_batch_size,
                virtual_replicas=virtual_replicas,
            )
            layout = plan_of(
                layout, num_segments=model.num_segments, batch=batch, schedule=schedule, recompute=recompute
            )
        self.model, self.plan = model, layout
        settings = self.settings = settings_of(
            training,
            layout.batch,
            precision=precision,
            exactness=exactness,
            total_samples=total_samples,
            **options,
        )
        torch.set_num_threads(1)  # as every worker does: bits depend on the number of threads
        self.network = MemoryNetwork(self.plan.layout.world_size)
        self.engines = [
            RankEngine(training, settings, model, self.plan, self.network.link(rank))
            for rank in range(self.plan.layout.world_size)
        ]

    def train(self, num_steps: int, *, seed: int = 0) -> Snapshot:
        """Run steps on every rank, check that all ranks agree, and return copies of the state."""
        steps = drive(self.network, self.engines, seed=seed, num_steps=num_steps)
        assert all(s == steps[0] for s in steps)
        return self.snapshot(steps[0])

    def abandon_step(self, num_advances: int, *, seed: int = 0) -> None:
        """Run so much of the next step, on ranks drawn by the seed, and drop what is under way."""
        random = Random(seed)
        for _ in range(num_advances):
            assert not isinstance(random.choice(self.engines).advance(), StepDone), "the step ended"
        self.network.drop_messages()

    def snapshot(self, steps: Sequence[StepDone] = ()) -> Snapshot:
        """Return copies of the state, shares put together, after checking that replicas hold equal bits."""
        merged: dict[str, Tensor] = {}
        states = [engine.state() for engine in self.engines]
        for state in states:
            for tensors in state.segments.values():
                for name, tensor in tensors.items():
                    held = merged.setdefault(name, tensor.clone())
                    assert held.equal(tensor), f"replicas differ in {name}"
        assert all(state.trainer == states[0].trainer for state in states)
        return Snapshot(joined(merged), states[0].trainer, tuple(steps))

    def resume(self, snapshot: Snapshot) -> None:
        """Load a snapshot taken at any layout."""
        by_segment: dict[int, dict[str, Tensor]] = {}
        for record in self.model.record_segments:
            names = {tensor.name for tensor in record.tensors}
            by_segment[record.index] = {
                name: tensor for name, tensor in snapshot.tensors.items() if _parameter(name) in names
            }
        for engine in self.engines:
            engine.load({i: by_segment[i] for i in engine.needed_segments}, snapshot.trainer)


def joined(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put optimizer state that replicas hold in shares together."""
    found: dict[str, Tensor] = {}
    slices: dict[str, list[tuple[int, Tensor]]] = {}
    for name, tensor in tensors.items():
        piece = PieceName.of(name)
        if piece.start is None:
            assert piece.whole not in found, f"{piece.whole} twice"
            found[piece.whole] = tensor
        else:
            slices.setdefault(piece.whole, []).append((piece.start, tensor))
    for name, parts in slices.items():
        flat = torch.cat([tensor for _, tensor in sorted(parts, key=lambda part: part[0])])
        found[name] = flat.view(found[f"param:{_parameter(name)}"].shape)
    return found


def _parameter(name: str) -> str:
    kind, _, rest = name.partition(":")
    return rest.rpartition(":")[0] if kind == "optim" else rest


def assert_equal_bits(one: Snapshot, other: Snapshot) -> None:
    """Fail with the names that differ."""
    assert one.tensors.keys() == other.tensors.keys()
    differing = [name for name, tensor in one.tensors.items() if not tensor.equal(other.tensors[name])]
    assert not differing, f"bits differ in {differing}"
    assert one.steps == other.steps
    assert one.trainer == other.trainer
