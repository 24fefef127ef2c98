"""R4 and R5: nodes come, and a job changes its layout."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import fmean

from benchmarks import recovery_stamps as stamps
from benchmarks.measure import Case, Claim, Row, Spread
from benchmarks.options import Options
from benchmarks.recovery_losses import SUBJECT
from benchmarks.recovery_pool import Pool
from benchmarks.recovery_processes import ForeignLoad, until
from benchmarks.recovery_stamps import Stamp
from benchmarks.testbed import RankFailed
from varuna_manager.core.words import What

MIB = 1 << 20
# Memory of a slot, in which the training of the whole model, of half of it, or of a quarter has room.
WHOLE, HALF, QUARTER = 2048 * MIB, 130 * MIB, 66 * MIB
NOTICE_S, FIRST_NOTICE_S = 20.0, 40.0  # in which new nodes are warmed up; the first drain is given more time
POOLS = ((4, HALF), (3, WHOLE), (4, HALF), (4, QUARTER))
"""The nodes after each morph: meant for 2x2, 1x3, 2x2 and 4x1, but the planner has the last word."""


def r4(options: Options) -> Case:
    """A node joins a job of one node."""
    case = Case(
        name="R4",
        title="a node joins: what the other loses, and how soon the newcomer works",
        settings=f"{SUBJECT}; from 1x1 to 1x2; the stall is the longest time between two steps around the "
        "morph less a usual step",
    )
    stalls, from_warm, from_start, noise = [], [], [], 0.0
    with Pool(nodes=1) as pool:
        pool.submit(nodes="{min: 1, max: 2}", layout="{stages: 1}")
        life = pool.settle("1x1")
        for _ in range(options.rounds(2)):
            load, begun_s = ForeignLoad(), time.monotonic()
            (newcomer,) = pool.add()
            life = pool.settle("1x2", after=life)
            noise = max(noise, load.cores())
            seen = pool.stamps
            first_s = next(stamp.at_s for stamp in seen if stamp.life == life)
            stalls.append(stall_s(seen, begun_s, seen[-1].at_s))
            from_start.append(first_s - begun_s)
            from_warm.append(first_s - _warm_s(pool, newcomer))
            options.say(
                f"     stall {stalls[-1]:.3f} s, from warm {from_warm[-1]:.3f} s, cold {from_start[-1]:.3f} s"
            )
            pool.drain(newcomer)
            life = pool.settle("1x1", after=life)
    case.rows += [
        Row(name="stall of the others", step_s=Spread.of(stalls)),
        Row(name="warm newcomer: from warm to its first step", step_s=Spread.of(from_warm)),
        Row(name="cold newcomer: from the start of its agent", step_s=Spread.of(from_start)),
    ]
    case.claims += [
        Claim(text="stall of the others: s", value=Spread.of(stalls), target=0.5, at_most=True),
        Claim(
            text="newcomer works after it is warm: s", value=Spread.of(from_warm), target=1.0, at_most=True
        ),
    ]
    case.notes += [
        "a job moves only if the plan gains, and no sooner than 5 s after its last morph",
        f"foreign load up to {noise:.2f} cores",
    ]
    return case


def r5(options: Options) -> Case:
    """Through the layouts that the planner makes of three kinds of nodes, and back."""
    case = Case(
        name="R5",
        title="morphs from layout to layout, with the bits of an undisturbed run",
        settings=f"{SUBJECT}; each time onto new nodes of other memory, the old ones under notice; "
        "so the whole state moves, over loopback, for which no time is granted",
    )
    pauses: dict[str, float] = {}
    with Pool(nodes=4, memory_bytes=QUARTER) as pool:
        pool.submit(nodes="{min: 1, max: 4}", micro_batch_size="1")
        life = pool.settle("")
        layouts = [pool.status().layout]
        for count, memory_bytes in POOLS:
            before = pool.members()
            pool.add(count, memory_bytes=memory_bytes)
            pool.await_ready(len(before) + count)
            begun_s = time.monotonic()
            for node in before:
                pool.notice(node, NOTICE_S if pauses else FIRST_NOTICE_S)
            life = pool.settle("", after=life)
            layouts.append(pool.status().layout)
            name = f"{len(layouts) - 1}: {layouts[-2]} to {layouts[-1]}"
            pauses[name] = stall_s(pool.stamps, begun_s, pool.stamps[-1].at_s)
            options.say(f"     {name}: {pauses[name]:.3f} s")
        differing = _differing(pool, pool.stamps)
    case.rows += [Row(name=name, step_s=Spread.of([value])) for name, value in pauses.items()]
    case.claims += [
        Claim(text="pause of a morph: s", value=Spread.of([*pauses.values()]), target=1.0, at_most=True),
        Claim(text="steps with other bits", value=Spread.of([float(differing)]), target=0.0, at_most=True),
    ]
    return case


def stall_s(seen: Sequence[Stamp], from_s: float, until_s: float) -> float:
    """Return the longest time between two new steps, less a usual one of the slower life around it."""
    lives = sorted({stamp.life for stamp in seen if from_s <= stamp.at_s <= until_s})
    usual = max(stamps.usual_step_s(seen, life) for life in (lives[0], lives[-1]))
    return max(stamps.pauses_s(seen, from_s, until_s)) - usual


def _warm_s(pool: Pool, node: str) -> float:
    """Return when a node was warm, by the monotonic clock."""
    told = [event.at for event in pool.events() if event.what == What.NODE_WARM and event.node == node]
    if not told:
        raise RankFailed(f"{node} was never told to be warm")
    return told[-1] - fmean([time.time() - time.monotonic() for _ in range(5)])


def _differing(pool: Pool, seen: Sequence[Stamp]) -> int:
    """Return how many steps have another loss than one process that trains alone."""
    ours = stamps.losses(seen)
    path = pool.folder / "alone"
    environment = {
        **os.environ,
        "VARUNA_JOB": str(pool.folder / "job" / "job.yaml"),
        "STAMPS": str(path),
    }
    with subprocess.Popen(
        [sys.executable, "train.py"], cwd=pool.folder / "job", env=environment, stdout=subprocess.DEVNULL
    ) as alone:
        try:
            until(lambda: len(stamps.read(path)) >= max(ours), "the undisturbed run", 180.0)
        finally:
            alone.kill()
    truth = stamps.losses(stamps.read(path))
    return sum(ours[step] != truth[step] for step in ours)
