"""Random candidates for tests of the simulator: every kind, uneven stages, luck, shared interfaces."""

from dataclasses import replace
from random import Random

from varuna_manager.planner.pipeline import OWN_LINK, Boundary, Pipeline, StageTiming
from varuna_runtime.spec.layout import ScheduleKind


def random_pipeline(seed: int) -> Pipeline:
    """Return a small candidate; every other one in eighths of a second, where many things happen at once."""
    random = Random(seed)
    stages, replicas = random.randint(1, 7), random.randint(1, 3)
    in_flight = random.choice([0, 1, 4])
    jitter = random.random() < 0.5

    def time_s(least: float, most: float) -> float:
        exact = random.uniform(least, most)
        return exact if seed % 2 else round(exact * 8) / 8

    def quantiles(least: float, most: float) -> tuple[float, ...]:
        found = (random.uniform(least, most) for _ in range(random.choice([2, 5])))
        return tuple(sorted(found)) if jitter and random.random() < 0.7 else ()

    found = Pipeline(
        schedule=random.choice(list(ScheduleKind)),
        stages=tuple(
            StageTiming(
                forward_s=time_s(0.125, 4),
                backward_s=time_s(0.125, 4),
                recompute=random.random() < 0.5 and s < stages - 1,
                reduction_s=time_s(0, 2),
                optimizer_s=time_s(0, 1),
                in_flight=in_flight,
            )
            for s in range(stages)
        ),
        boundaries=tuple(
            Boundary(serial_s=time_s(0, 3), latency_s=time_s(0, 3), late_s=quantiles(0, 1))
            for _ in range(stages - 1)
        ),
        micro_batches=tuple(random.randint(1, 12) for _ in range(replicas)),
        agreement_s=time_s(0, 1),
        compute_factor=quantiles(0.8, 2),
        interfaces=_interfaces(random, stages, replicas) if random.random() < 0.5 else (),
    )
    if sum(found.micro_batches) == 1 or random.random() < 0.5:
        return found
    return replace(found, last_compute=time_s(0.125, 1), last_bytes=time_s(0.125, 1))


def _interfaces(random: Random, stages: int, replicas: int) -> tuple[tuple[int, int], ...]:
    most = random.randint(1, 4)
    return tuple(
        (
            random.randint(OWN_LINK, most) if s < stages - 1 else OWN_LINK,
            random.randint(OWN_LINK, most) if s > 0 else OWN_LINK,
        )
        for _ in range(replicas)
        for s in range(stages)
    )


def uniform(num_micro: int) -> Pipeline:
    """Return four equal stages under 1F1B, forward 1 s and backward 2 s, with free links."""
    return Pipeline(
        schedule=ScheduleKind.ONE_F_ONE_B,
        stages=(
            StageTiming(forward_s=1.0, backward_s=2.0, recompute=False, reduction_s=0.0, optimizer_s=0.0),
        )
        * 4,
        boundaries=(Boundary(serial_s=0.0, latency_s=0.0),) * 3,
        micro_batches=(num_micro,),
        agreement_s=0.0,
    )
