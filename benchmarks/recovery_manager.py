"""R7: the manager is gone for a while."""

import math
import time
from statistics import median

from benchmarks import recovery_stamps as stamps
from benchmarks.measure import Case, Claim, Row, Spread
from benchmarks.options import Options
from benchmarks.recovery_losses import SUBJECT
from benchmarks.recovery_pool import Pool
from benchmarks.recovery_processes import ForeignLoad, until

AWAY_S = 8.0
NO_PAUSE = 1.2  # the same training differs by as much from one span to the next


def r7(options: Options) -> Case:
    """SIGKILL of the manager under a running job."""
    case = Case(
        name="R7",
        title="SIGKILL of the manager",
        settings=f"{SUBJECT}; two replicas on two nodes; steps in the {AWAY_S:g} s of its absence "
        "against those of as long before",
    )
    ratios, longest, before_s, away_s, restarts, noise = [], [], [], [], 0, 0.0
    with Pool(nodes=2) as pool:
        pool.submit(nodes="{min: 1, max: 2}", layout="{stages: 1}")
        for _ in range(options.rounds(2)):
            life = pool.settle("1x2")
            time.sleep(AWAY_S)
            load = ForeignLoad()
            killed_s = pool.kill_manager()
            time.sleep(AWAY_S)
            noise = max(noise, load.cores())
            seen = pool.stamps
            before = stamps.pauses_s(seen, killed_s - AWAY_S, killed_s)
            away = stamps.pauses_s(seen, killed_s, killed_s + AWAY_S)
            ratios.append(median(away) / median(before) if away and before else math.inf)
            longest.append(max(away, default=math.inf))
            before_s += before
            away_s += away
            pool.revive_manager()
            _await_news(pool, seen[-1].step)
            restarts += pool.stamps[-1].life - life
            options.say(f"     step times away / before {ratios[-1]:.3f}, longest {longest[-1]:.3f} s")
    case.rows += [
        Row(name="a step before", step_s=Spread.of(before_s)),
        Row(name="a step without a manager", step_s=Spread.of(away_s)),
        Row(name="the longest of these", step_s=Spread.of(longest)),
    ]
    case.claims += [
        Claim(text="step without / with a manager", value=Spread.of(ratios), target=NO_PAUSE, at_most=True),
        Claim(text="restarts", value=Spread.of([float(restarts)]), target=0.0, at_most=True),
    ]
    case.notes.append(f"foreign load up to {noise:.2f} cores")
    return case


def _await_news(pool: Pool, step: int) -> None:
    """Wait until the manager that came back has heard of a later step."""
    until(lambda: pool.status().step > step + 1, "news after the manager", 60.0)
