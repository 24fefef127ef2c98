"""R4: nodes come."""

import time
from collections.abc import Sequence
from statistics import fmean

from benchmarks import recovery_stamps as stamps
from benchmarks.measure import Case, Claim, Row, Spread
from benchmarks.options import Options
from benchmarks.recovery_losses import SUBJECT
from benchmarks.recovery_pool import Pool
from benchmarks.recovery_processes import ForeignLoad
from benchmarks.recovery_stamps import Stamp
from benchmarks.testbed import RankFailed
from varuna_manager.core.words import What

REST_S = 6.0  # a job does not grow sooner than 5 s after its last morph


def r4(options: Options) -> Case:
    """A node joins a job of one node."""
    case = Case(
        name="R4",
        title="a node joins: what the other loses, and how soon the newcomer works",
        settings=f"{SUBJECT}; from 1x1 to 1x2; the stall is the time between the last step without the "
        "newcomer and the first with it, less a usual step; it comes cold and is warmed up meanwhile",
    )
    stalls, from_warm, from_start, noise = [], [], [], 0.0
    with Pool(nodes=1) as pool:
        pool.submit(nodes="{min: 1, max: 2}", layout="{stages: 1}")
        life = pool.settle("1x1")
        for _ in range(options.rounds(2)):
            time.sleep(REST_S)
            load, begun_s = ForeignLoad(), time.monotonic()
            (newcomer,) = pool.add()
            life = pool.settle("1x2", after=life)
            noise = max(noise, load.cores())
            seen = pool.stamps
            first_s = next(stamp.at_s for stamp in seen if stamp.life == life)
            stalls.append(pause_s(seen, life))
            from_start.append(first_s - begun_s)
            from_warm.append(first_s - warm_s(pool, newcomer))
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
        f"foreign load up to {noise:.2f} cores",
    ]
    return case


def pause_s(seen: Sequence[Stamp], life: int) -> float:
    """Return what the switch to a life cost: less a usual step of the slower life around it."""
    last = max(stamp.life for stamp in seen if stamp.life < life)
    usual = max(stamps.usual_step_s(seen, last), stamps.usual_step_s(seen, life))
    return stamps.switch_s(seen, life) - usual


def stall_s(seen: Sequence[Stamp], from_s: float, until_s: float) -> float:
    """Return the longest time between two new steps, less a usual one of the slower life around it."""
    lives = sorted({stamp.life for stamp in seen if from_s <= stamp.at_s <= until_s})
    usual = max(stamps.usual_step_s(seen, life) for life in (lives[0], lives[-1]))
    return max(stamps.pauses_s(seen, from_s, until_s)) - usual


def warm_s(pool: Pool, node: str) -> float:
    """Return when a node was warm, by the monotonic clock."""
    told = [event.at for event in pool.events() if event.what == What.NODE_WARM and event.node == node]
    if not told:
        raise RankFailed(f"{node} was never told to be warm")
    return told[-1] - fmean([time.time() - time.monotonic() for _ in range(5)])
