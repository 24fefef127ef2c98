"""R1 and R2: a worker, and a node, is gone from one moment to the next."""

import random
from pathlib import Path

from benchmarks.measure import Case
from benchmarks.options import Options
from benchmarks.recovery_peers import TUNED, Torchft, Torchrun, installed_torchft
from benchmarks.recovery_pool import Pool
from benchmarks.recovery_processes import ForeignLoad
from benchmarks.recovery_tally import Tally, aim, finish

OURS = "ours"
OURS_REPLICAS, OURS_PIPELINE = "ours, D=2", "ours, P=4 D=1"
TORCHRUN, TORCHFT = "torchrun", "torchft, heartbeat 1 s"
TORCHRUN_TUNED, TORCHRUN_DEFAULT = "torchrun, keep-alive 1 s", "torchrun, its defaults"
SUBJECT = "transformer of 6.3 million parameters, AdamW, 8 sequences of 32 bytes a step, one thread a rank"
NO_TORCHFT = "torchft is left out: torchft-nightly could not be installed from the package index"


def r1(options: Options) -> Case:
    """One of four workers."""
    case = Case(
        name="R1",
        title="SIGKILL of one of four workers, to the first newly committed step",
        settings=f"{SUBJECT}; ours on two nodes of two slots, in the layout that the planner chooses for "
        "four ranks; torchrun with four replicas and one agent, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, DCP "
        "every 10 steps; torchft with four replica groups",
    )
    tally, draw, python = Tally(options), random.Random(1), _torchft(case)
    layouts: list[str] = []
    with Pool(nodes=2, slots=2) as pool:
        for _ in range(options.rounds(2)):
            layouts += _ours_r1(pool, tally, draw)
            _torchrun_r1(tally, draw)
            if python is not None:
                _torchft_kills(python, tally, draw, replicas=4, kills=2)
    case.claims += [
        *tally.within(OURS, 0.8, p95_s=1.5),
        tally.lost(OURS),
        tally.against(OURS, TORCHRUN, 14.0),
    ]
    if tally.has(TORCHFT):
        case.claims.append(tally.against(OURS, TORCHFT, 1.3))
    case.notes.append(f"ours trained as {', '.join(sorted(set(layouts)))}")
    return finish(case, tally)


def _ours_r1(pool: Pool, tally: Tally, draw: random.Random, kills: int = 6) -> list[str]:
    """Return the layouts in which it trained."""
    pool.submit(nodes="{min: 1, max: 2}")
    life, layouts = pool.settle(""), []
    for _ in range(kills):
        layouts.append(pool.status().layout)
        step_s = aim(pool.stamps, draw)
        load = ForeignLoad()
        recovery = pool.recovered(pool.kill_worker(draw))
        tally.keep(OURS, recovery, step_s, load)
        life = pool.settle("", after=life)
    pool.cancel()
    return layouts


def _torchrun_r1(tally: Tally, draw: random.Random) -> None:
    with Torchrun(nodes=1, workers=4) as torchrun:
        torchrun.settle(4)
        step_s = aim(torchrun.stamps, draw)
        load = ForeignLoad()
        tally.keep(TORCHRUN, torchrun.recovered(torchrun.kill_worker(draw)), step_s, load)


def _torchft_kills(python: Path, tally: Tally, draw: random.Random, *, replicas: int, kills: int) -> None:
    with Torchft(python, replicas=replicas, heartbeat_ms=1000, join_ms=1000) as torchft:
        for _ in range(kills):
            torchft.bring_back()
            torchft.settle(replicas)
            step_s = aim(torchft.stamps, draw)
            load = ForeignLoad()
            tally.keep(TORCHFT, torchft.recovered(torchft.kill_worker(draw)), step_s, load)


def r2(options: Options) -> Case:
    """One of two nodes that are replicas, and one of four that are stages."""
    case = Case(
        name="R2",
        title="SIGKILL of a node (agent and all below it), to the first newly committed step",
        settings=f"{SUBJECT}; a slot a node; after it one node, or three, are left",
    )
    tally, draw, python = Tally(options), random.Random(2), _torchft(case)
    with Pool(nodes=4) as pool:
        for round_ in range(options.rounds(2)):
            _ours_r2(pool, tally, draw, OURS_REPLICAS, 2, "{stages: 1}")
            _ours_r2(pool, tally, draw, OURS_PIPELINE, 4, "{replicas: 1}")
            _torchrun_r2(tally, draw, TORCHRUN_TUNED, TUNED)
            if round_ == 0:
                _torchrun_r2(tally, draw, TORCHRUN_DEFAULT, "")
            if python is not None:
                _torchft_kills(python, tally, draw, replicas=2, kills=1)
    case.claims += [
        *tally.within(OURS_REPLICAS, 1.5),
        tally.lost(OURS_REPLICAS),
        *tally.within(OURS_PIPELINE, 3.0),
        tally.lost(OURS_PIPELINE),
        tally.against(OURS_REPLICAS, TORCHRUN_TUNED, 6.0),
        tally.against(OURS_REPLICAS, TORCHRUN_DEFAULT, 30.0),
    ]
    if tally.has(TORCHFT):
        case.claims.append(tally.against(OURS_REPLICAS, TORCHFT, 1.0))
    return finish(case, tally)


def _ours_r2(pool: Pool, tally: Tally, draw: random.Random, name: str, nodes: int, layout: str) -> None:
    full = f"1x{nodes}" if layout == "{stages: 1}" else f"{nodes}x1"
    pool.submit(nodes=f"{{min: 1, max: {nodes}}}", layout=layout)
    pool.settle(full)
    step_s = aim(pool.stamps, draw)
    victim = draw.choice(pool.members())
    load = ForeignLoad()
    tally.keep(name, pool.recovered(pool.kill_node(victim)), step_s, load)
    pool.cancel()
    pool.replace_lost()


def _torchrun_r2(tally: Tally, draw: random.Random, name: str, settings: str) -> None:
    with Torchrun(nodes=2, workers=1, settings=settings) as torchrun:
        torchrun.settle(2)
        step_s = aim(torchrun.stamps, draw)
        load = ForeignLoad()
        tally.keep(name, torchrun.recovered(torchrun.kill_node()), step_s, load)


def _torchft(case: Case) -> Path | None:
    python = installed_torchft()
    if python is None:
        case.notes.append(NO_TORCHFT)
    return python
