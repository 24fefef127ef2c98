"""Steps and evaluations as messages to the agent."""

from varuna_runtime.spec.copies import Version
from varuna_runtime.spec.manifest import EvaluationRecord, LossRecord
from varuna_runtime.wire.v1 import common_pb2
from varuna_runtime.worker.signals import StepDone
from varuna_runtime.worker.stopwatch import Busy


def told_step(done: StepDone, took_s: float, busy: Busy) -> common_pb2.StepDone:
    """Return a step for the agent, with what it cost this rank."""
    return common_pb2.StepDone(
        step=done.record.step,
        loss_hex=done.record.loss_hex,
        loss=done.loss,
        weight=done.record.weight,
        samples=done.record.samples,
        step_s=took_s,
        grad_norm=None if done.record.is_skipped else done.grad_norm,
        learning_rate=done.learning_rate,
        loss_scale=done.loss_scale,
        skipped=done.record.is_skipped,
        busy_s=busy.seconds,
        busy_samples=busy.num_samples,
        recoverable=done.recoverable if done.recoverable >= 0 else None,
    )


def told_version(version: Version) -> common_pb2.Version:
    """Return a version for the agent."""
    return common_pb2.Version(step=version.step, generation=version.generation)


def told_again(loss: LossRecord) -> common_pb2.CommittedStep:
    """Return a step out of the checkpoint: the node that first told it may be gone, unheard."""
    step = common_pb2.StepDone(
        step=loss.step,
        loss_hex=loss.loss_hex,
        loss=float.fromhex(loss.loss_hex),
        weight=loss.weight,
        samples=loss.samples,
        skipped=loss.is_skipped,
    )
    return common_pb2.CommittedStep(generation=loss.generation, step=step)


def told_evaluation(record: EvaluationRecord, took_s: float = 0.0) -> common_pb2.EvaluationDone:
    """Return an evaluation for the agent."""
    return common_pb2.EvaluationDone(
        step=record.step,
        generation=record.generation,
        samples=record.samples,
        evaluation_s=took_s,
        figures=[
            common_pb2.Figure(name=f.name, value_hex=f.value_hex, weight=f.weight) for f in record.figures
        ],
    )
