"""E6: messages with a heavy tail, the same draws for every schedule, simulated and real."""

from collections.abc import Mapping

import torch
from torch import nn

from benchmarks import ours, peers
from benchmarks.emulated import Pace, Times, mean_of_few, stage_modules
from benchmarks.jitter import LateLink, Stamped
from benchmarks.joined import Joined
from benchmarks.measure import Case, Claim, Row, Samples
from benchmarks.options import Options
from benchmarks.testbed import Loopback, Make, Place, Ranks, Runner, in_turns
from varuna_runtime.spec.layout import ScheduleKind

STAGES, MICRO, WIDTH = 4, 16, 1024
TIMES = Times(forward_s=0.03, input_s=0.03, weight_s=0.03)
OURS = "ours work-conserving"
PEERS = (peers.GPIPE, peers.ONE_F_ONE_B, peers.ASYNC_1F1B)


def ideal_s(*, recompute: bool) -> float:
    """Return the time without jitter; the stages before the last one, which replays nothing, set the pace."""
    replay_s = TIMES.forward_s if recompute else 0.0
    return (MICRO + STAGES - 1) * (TIMES.micro_s + replay_s)


def make(*, recompute: bool) -> Make:
    """Return what a rank builds."""

    def build(place: Place) -> Mapping[str, Runner]:
        joined, pace = Joined.at(place), Pace()
        stamped: list[Stamped] = []

        def late(count: int) -> list[nn.Module]:
            found = [
                Stamped(module, index, count, recompute=recompute)
                for index, module in enumerate(stage_modules(TIMES, pace, count=count, width=WIDTH))
            ]
            stamped.extend(found)
            return list(found)

        inputs = targets = torch.zeros(MICRO, 1)
        subject = peers.Subject(
            modules=late,
            loss=mean_of_few,
            inputs=inputs,
            targets=targets,
            num_micro=MICRO,
            optimizer=peers.sgd,
        )
        link = LateLink(joined.link, stage=place.rank)
        steps = dict(peers.runners(place, subject, PEERS))
        steps[OURS] = ours.engine_of(
            link,
            ours.Way(schedule=ScheduleKind.WORK_CONSERVING, recompute=recompute),
            world_size=place.size,
            modules=lambda: nn.Sequential(*stage_modules(TIMES, pace, count=STAGES, width=WIDTH)),
            loss=lambda output, batch: mean_of_few(output, batch[1]),
            inputs=inputs,
            targets=targets,
            num_micro=MICRO,
        ).run_step

        def late_step(name: str) -> Runner:
            def run(round_: int) -> None:
                pace.factor = 0.0 if round_ < 0 else 1.0
                for channel in (link, *stamped):
                    channel.begin(round_)
                steps[name]()

            return run

        return {name: late_step(name) for name in steps}

    return build


def e6(options: Options) -> Case:
    """Without and with recompute."""
    case = Case(
        name="E6",
        title="a heavy tail on every message",
        settings=f"P={STAGES} M={MICRO}, F / dI / dW 30 / 30 / 30 ms, loopback; a tenth of the messages late "
        "by a Pareto draw from 60 ms on, alpha 1.5, at most 1 s; the same draws for all",
    )
    for recompute in (False, True):
        _measure(case, recompute, options)
    return case


def _measure(case: Case, recompute: bool, options: Options) -> None:
    word = "recompute" if recompute else "no recompute"
    names = [*PEERS, OURS]
    samples = Samples()
    with Loopback(STAGES) as network, Ranks(network, make(recompute=recompute)) as ranks:
        for name in names:
            ranks.run(name, -1)
        for round_, name, run in in_turns(ranks, names, options.rounds(20)):
            options.keep(samples, round_, name, run)
    limits = {
        peers.GPIPE: f"{MICRO}",
        peers.ONE_F_ONE_B: "P - stage",
        peers.ASYNC_1F1B: "P - stage",
        OURS: f"{MICRO}",
    }
    for name in names:
        row = f"{word}, at most {limits[name]} in flight: {name}"
        share = samples.of_limit(name, ideal_s(recompute=recompute)).median
        case.rows.append(Row(name=row, step_s=samples.step(name), shares={"of no jitter": share}))
    best = samples.best(PEERS)
    case.claims += [
        Claim(
            text=f"{word}, real: against the best torch ({best})",
            value=samples.speedup(OURS, best),
            target=1.15,
        ),
        Claim(
            text=f"{word}, real: against Schedule1F1B",
            value=samples.speedup(OURS, peers.ONE_F_ONE_B),
            target=1.25,
        ),
    ]
    case.notes.append(f"{word}: {samples.noise()}")
