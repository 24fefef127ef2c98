"""What one replica does in a step: virtual replicas and micro-batches, a function of the plan alone."""

from dataclasses import dataclass

from varuna_runtime.spec.batches import (
    micro_batch_rows,
    num_micro_batches,
    replica_micro_batches,
    virtual_replicas,
)
from varuna_runtime.spec.job import Exactness
from varuna_runtime.spec.layout import Plan
from varuna_runtime.spec.reduction import share
from varuna_runtime.worker.stage import MicroBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShare:
    """One replica's share of a step."""

    num_samples: int  # of the whole step
    num_micro: int  # of the whole step
    virtual: int  # number of virtual replicas of the whole step
    owned: range  # of these
    micros: tuple[MicroBatch, ...]  # empty where a short step has too few for every replica


def step_share(plan: Plan, *, step: int, num_samples: int, replica: int, exactness: Exactness) -> StepShare:
    """Return the share of `replica` in a step of `num_samples`.

    Where the order of sums is free each replica is one virtual replica, so that it hands over one sum.
    """
    size, replicas = plan.batch.micro_batch_size, plan.layout.replicas
    num_micro = num_micro_batches(num_samples, size)
    is_bitwise = exactness is Exactness.BITWISE
    virtual = virtual_replicas(plan.batch, num_micro) if is_bitwise else min(replicas, num_micro)
    owned = share(virtual, replicas, replica)
    spans = replica_micro_batches(num_micro, virtual, replicas, replica)
    micros = tuple(
        MicroBatch(
            step=step,
            index=index,
            rows=len(micro_batch_rows(num_samples, size, index)),
            virtual_replica=v,
            ends_virtual_replica=index == span[-1],
        )
        for v, span in zip(owned, spans, strict=True)
        for index in span
    )
    return StepShare(
        num_samples=num_samples, num_micro=num_micro, virtual=virtual, owned=owned, micros=micros
    )
