"""E6: messages with a heavy tail, the same draws for every schedule, simulated and real."""

from collections.abc import Mapping
from functools import partial
from statistics import mean

import torch
from torch import nn

from benchmarks import ours, peers
from benchmarks.emulated import Pace, Times, mean_of_few, stage_modules
from benchmarks.jitter import LateLink, Stamped, delay_s
from benchmarks.jitter_simulation import speedups, step_s
from benchmarks.joined import Joined
from benchmarks.measure import Case, Claim, Row, Samples, Spread
from benchmarks.options import Options
from benchmarks.testbed import Loopback, Make, Place, Ranks, Runner
from varuna_runtime.spec.layout import ScheduleKind
from varuna_runtime.spec.schedule import OpKind

STAGES, MICRO, WIDTH = 4, 16, 1024
TIMES = Times(forward_s=0.03, input_s=0.03, weight_s=0.03)
WHOLE, SPLIT = "ours work-conserving", "ours zero-bubble"
WAYS = {WHOLE: ScheduleKind.WORK_CONSERVING, SPLIT: ScheduleKind.ZERO_BUBBLE}
PEERS = (peers.GPIPE, peers.ONE_F_ONE_B, peers.ZBV)  # sends cost nothing here, waited for or not
SIMULATED = {peers.GPIPE: ScheduleKind.GPIPE, peers.ONE_F_ONE_B: ScheduleKind.ONE_F_ONE_B} | WAYS
IN_FLIGHT = {peers.GPIPE: "M", peers.ONE_F_ONE_B: "P - stage", peers.ZBV: "P"}
DRAWS = 1000
TOO_SLOW = 1.2  # a peer this much slower than the best after TRIED rounds runs no more
TRIED = 3


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
                Stamped(module, index, count, ranks=STAGES, recompute=recompute)
                for index, module in enumerate(
                    stage_modules(TIMES.split(count // STAGES), pace, count=count, width=WIDTH)
                )
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
        for name, schedule in WAYS.items():
            steps[name] = ours.engine_of(
                link,
                ours.Way(schedule=schedule, recompute=recompute, in_flight=MICRO),
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
                link.begin(round_)
                for channel in stamped:
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
        "by 60 ms x (Pareto of alpha 1.5, less 1), at most 1 s; the same draws for all; ours may hold "
        "up to M micro-batches, as GPipe does",
    )
    for recompute in (False, True):
        _simulate(case, recompute, options)
        _measure(case, recompute, options)
    return case


def _simulate(case: Case, recompute: bool, options: Options) -> None:
    """Add what many draws give in virtual time; no peer pays there for its sends or its CPU."""
    word = f"{_word(recompute)}, {DRAWS} draws simulated"
    options.say(f" {word}")
    times_s = {name: _simulated(kind, recompute) for name, kind in SIMULATED.items()}
    for name, found in times_s.items():
        case.rows.append(_row(word, name, Spread.of(found), mean(found), recompute))
    peer = min((peers.GPIPE, peers.ONE_F_ONE_B), key=lambda name: mean(times_s[name]))
    best = min(WAYS, key=lambda name: mean(times_s[name]))
    for text, other, target in (("the best torch", peer, 1.15), ("1F1B", peers.ONE_F_ONE_B, 1.25)):
        ratio = mean(times_s[other]) / mean(times_s[best])
        per_draw = Spread.of(speedups(times_s[best], times_s[other]))
        value = Spread(median=ratio, low=per_draw.low, high=per_draw.high, count=DRAWS)
        case.claims.append(Claim(text=f"{word}: {best} against {text} ({other})", value=value, target=target))


def _simulated(kind: ScheduleKind, recompute: bool) -> list[float]:
    seconds = {
        OpKind.FORWARD: TIMES.forward_s,
        OpKind.RECOMPUTE: TIMES.forward_s,
        OpKind.BACKWARD: TIMES.backward_s,
        OpKind.INPUT: TIMES.input_s,
        OpKind.WEIGHT: TIMES.weight_s,
    }
    return [
        step_s(
            kind,
            num_stages=STAGES,
            num_micro=MICRO,
            seconds=seconds,
            late=partial(delay_s, draw),
            recompute=recompute,
        )
        for draw in range(DRAWS)
    ]


def _measure(case: Case, recompute: bool, options: Options) -> None:
    word = f"{_word(recompute)}, real"
    names = [*PEERS, *WAYS]
    samples = Samples()
    rounds = options.rounds(20)
    with Loopback(STAGES) as network, Ranks(network, make(recompute=recompute)) as ranks:
        for name in names:
            ranks.run(name, -1)
        for round_ in range(rounds):
            if round_ == TRIED:
                names = [n for n in names if n in WAYS or _is_worth_it(samples, n)]
            for name in (*names[round_ % len(names) :], *names[: round_ % len(names)]):
                options.keep(samples, round_, name, ranks.run(name, round_))
    for name in samples.names:
        step = samples.step(name)
        case.rows.append(_row(word, name, step, step.median, recompute))
    best, peer = samples.best(tuple(WAYS)), samples.best(PEERS)
    for text, other, target in (("the best torch", peer, 1.15), ("1F1B", peers.ONE_F_ONE_B, 1.25)):
        value = samples.speedup(best, other)
        case.claims.append(Claim(text=f"{word}: {best} against {text} ({other})", value=value, target=target))
    case.notes.append(f"{word}: {samples.noise()}")


def _is_worth_it(samples: Samples, name: str) -> bool:
    best_s = samples.step(samples.best(PEERS)).median
    return name == peers.ONE_F_ONE_B or samples.step(name).median <= TOO_SLOW * best_s


def _row(word: str, name: str, step: Spread, typical_s: float, recompute: bool) -> Row:
    held = IN_FLIGHT.get(name, "M")
    share = ideal_s(recompute=recompute) / typical_s
    return Row(
        name=f"{word}: {name}, {held} in flight", step_s=step, shares={"of 1F1B without jitter": share}
    )


def _word(recompute: bool) -> str:
    return "recompute" if recompute else "no recompute"
