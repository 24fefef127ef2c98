"""R6: a node is announced to vanish, in whatever the job does just then."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks import recovery_stamps as stamps
from benchmarks.measure import Case, Claim, Row, Spread
from benchmarks.options import Options
from benchmarks.recovery_losses import SUBJECT
from benchmarks.recovery_moves import stall_s
from benchmarks.recovery_pool import Pool
from benchmarks.recovery_processes import ForeignLoad, until
from varuna_manager.core.phases import JobPhase

SHORT_S, LONG_S = 5.0, 30.0
JOB = {"nodes": "{min: 1, max: 2}", "layout": "{stages: 1}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one notice cost."""

    pause_s: float
    lost_steps: int
    held_ranks: bool  # the node still had some when it vanished


def r6(options: Options) -> Case:
    """Notices while steps are made, while one is saved, and in the middle of a start."""
    case = Case(
        name="R6",
        title="notices: steps lost, and the pause",
        settings=f"{SUBJECT}; two replicas on two nodes, one of which is announced to vanish; the pause is "
        "the longest time between two steps less a usual one; in a start it is the time to the first step",
    )
    draw, load = random.Random(6), ForeignLoad()
    found: dict[str, list[Outcome]] = {}
    with Pool(nodes=3) as pool:
        for _ in range(options.rounds(1)):
            for name, make in SITUATIONS.items():
                outcome = make(pool, draw)
                found.setdefault(name, []).append(outcome)
                options.say(
                    f"     {name}: pause {outcome.pause_s:.3f} s, lost {outcome.lost_steps}, "
                    f"held ranks {outcome.held_ranks}"
                )
                pool.cancel()
                pool.replace_lost()
    every = [outcome for outcomes in found.values() for outcome in outcomes]
    running = [
        o.pause_s for name, outcomes in found.items() for o in outcomes if "step" in name or "save" in name
    ]
    case.rows += [
        Row(
            name=name,
            step_s=Spread.of([o.pause_s for o in outcomes]),
            shares={"lost steps": max(o.lost_steps for o in outcomes)},
        )
        for name, outcomes in found.items()
    ]
    case.claims += [
        _most("steps lost", [float(o.lost_steps) for o in every], 0.0),
        _most("nodes that vanished with ranks", [float(o.held_ranks) for o in every], 0.0),
        Claim(text="pause in steps and saves: s", value=Spread.of(running), target=1.0, at_most=True),
    ]
    case.notes.append(f"foreign load {load.cores():.2f} cores")
    return case


def _in_a_step(pool: Pool, draw: random.Random, in_s: float) -> Outcome:
    pool.submit(**JOB)
    pool.settle("1x2")
    return _noticed(pool, draw.choice(pool.members()), in_s)


def _in_a_save(pool: Pool, draw: random.Random) -> Outcome:
    """A save begins with the tenth step."""
    pool.submit(**JOB)
    pool.settle("1x2")
    victim = draw.choice(pool.members())
    due = (pool.stamps[-1].step // 10 + 1) * 10
    until(lambda: pool.stamps[-1].step >= due, "the next save", 60.0)
    return _noticed(pool, victim, SHORT_S)


def _in_load(pool: Pool, draw: random.Random) -> Outcome:
    """The start that follows the loss of a worker."""
    pool.submit(**JOB)
    life = pool.settle("1x2")
    victim = draw.choice(pool.members())
    pool.kill_worker(draw)
    until(lambda: pool.status().generation > life, "the next start", 60.0)
    return _noticed(pool, victim, SHORT_S, newest=pool.stamps[-1].step)


def _in_a_start(pool: Pool, draw: random.Random, phase: JobPhase) -> Outcome:
    """The first start: STARTING is when the script is imported."""
    pool.submit(**JOB)
    past = {JobPhase.STARTING, JobPhase.RUNNING, phase}
    until(lambda: pool.status().state in past, f"{phase}", 60.0)
    return _noticed(pool, draw.choice([node.node for node in pool.ready()]), SHORT_S)


def _noticed(pool: Pool, node: str, in_s: float, newest: int | None = None) -> Outcome:
    """Announce the end of a node and watch it until after that; a start is to lead beyond step `newest`."""
    was_running = bool(pool.stamps) and newest is None
    begun_s = pool.notice(node, in_s)
    held = _held_until_the_end(pool, node, begun_s + in_s)
    until(lambda: sum(s.at_s > begun_s + in_s for s in pool.stamps) >= 3, "steps after the end", 90.0)
    seen = pool.stamps
    if was_running:
        pause_s = stall_s(seen, begun_s, seen[-1].at_s)
    else:
        pause_s = next(s.at_s for s in seen if s.at_s > begun_s and s.step > (newest or 0)) - begun_s
    return Outcome(pause_s=pause_s, lost_steps=stamps.replayed(seen, begun_s), held_ranks=held)


def _held_until_the_end(pool: Pool, node: str, end_s: float) -> bool:
    """Wait for the end of a node; return whether it had ranks shortly before."""
    time.sleep(max(0.0, end_s - 0.3 - time.monotonic()))
    held = node in pool.members()
    until(lambda: node not in pool.agents(), f"{node} to vanish", 30.0)
    return held


def _most(text: str, values: list[float], target: float) -> Claim:
    worst = Spread(median=max(values), low=min(values), high=max(values), count=len(values))
    return Claim(text=f"{text}, at most", value=worst, target=target, at_most=True)


SITUATIONS: dict[str, Callable[[Pool, random.Random], Outcome]] = {
    "5 s, in a step": partial(_in_a_step, in_s=SHORT_S),
    "5 s, in a save": _in_a_save,
    "5 s, in import": partial(_in_a_start, phase=JobPhase.STARTING),
    "5 s, in plan": partial(_in_a_start, phase=JobPhase.PLANNING),
    "5 s, in load": _in_load,
    "30 s, in a step": partial(_in_a_step, in_s=LONG_S),
}
