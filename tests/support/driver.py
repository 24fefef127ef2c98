"""A seeded driver in place of the operating system: which rank of one process runs next."""

from collections.abc import Sequence
from random import Random
from typing import Protocol

from varuna_runtime.worker.link.memory import Deadlock, MemoryNetwork
from varuna_runtime.worker.signals import EvaluationDone, Progressed, StepDone, Waiting


class Stepper(Protocol):
    """Anything that advances like a rank's engine."""

    def advance(self) -> Progressed | Waiting | StepDone | EvaluationDone:
        """Do one piece of work."""
        ...


def drive(
    network: MemoryNetwork, ranks: Sequence[Stepper], *, seed: int, num_steps: int = 1
) -> list[tuple[StepDone, ...]]:
    """Advance a random rank at a time until each has done `num_steps`; return the steps of each rank.

    Raises Deadlock when every unfinished rank waits and no message was sent since it last looked.
    """
    random = Random(seed)
    done: list[list[StepDone]] = [[] for _ in ranks]
    waits: dict[int, tuple[int, str]] = {}
    while unfinished := [r for r in range(len(ranks)) if len(done[r]) < num_steps]:
        runnable = [r for r in unfinished if r not in waits or waits[r][0] != network.num_sent]
        if not runnable:
            raise Deadlock("; ".join(f"rank {r} waits for {waits[r][1]}" for r in unfinished))
        rank = random.choice(runnable)
        signal = ranks[rank].advance()
        waits.pop(rank, None)
        if isinstance(signal, Waiting):
            waits[rank] = network.num_sent, signal.on
        elif isinstance(signal, StepDone):
            done[rank].append(signal)
    return [tuple(steps) for steps in done]
