"""E1-E3: step time with compute that sleeps, over slow links."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from benchmarks import ours, peers
from benchmarks.emulated import Pace, Times, mean_of_few, stage_modules
from benchmarks.joined import Joined, timed_message
from benchmarks.measure import Case, Claim, Row, Samples
from benchmarks.options import Options
from benchmarks.testbed import Make, Network, Place, Ranks, Runner, in_turns
from varuna_runtime.spec.job import Exactness
from varuna_runtime.spec.layout import ScheduleKind

WHOLE = "ours work-conserving"
WHOLE_STATISTICAL = "ours work-conserving, statistical"
SPLIT = "ours zero-bubble"
WAYS = {
    WHOLE: ours.Way(schedule=ScheduleKind.WORK_CONSERVING),
    WHOLE_STATISTICAL: ours.Way(schedule=ScheduleKind.WORK_CONSERVING, exactness=Exactness.STATISTICAL),
    SPLIT: ours.Way(schedule=ScheduleKind.ZERO_BUBBLE),
}
TOO_SLOW = 1.12  # a peer this much slower than the best in the first round runs no more
RATE = "200mbit"
WIDTH = 131072  # float32: 512 KB


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One emulated pipeline."""

    stages: int
    micro: int
    times: Times

    def whole_limit_s(self, message_s: float) -> float:
        """Return the time of the best schedule with whole backwards: fill and drain each cross every link."""
        fill_s = (self.stages - 1) * (self.times.micro_s + 2 * message_s)
        return self.micro * self.times.micro_s + fill_s

    def split_limit_s(self, message_s: float) -> float:
        """Return a bound for one stage a rank with backwards in two parts: the last stage starts last."""
        fill_s = (self.stages - 1) * (self.times.forward_s + message_s)
        return self.micro * self.times.micro_s + fill_s

    def chunked_limit_s(self, message_s: float) -> float:
        """Return the same bound for two stages a rank: the fill crosses halves of the stages."""
        fill_s = (self.stages - 1) * (self.times.forward_s / 2 + message_s)
        return self.micro * self.times.micro_s + fill_s

    def __str__(self) -> str:
        """Return it for a table."""
        t = self.times
        parts = " / ".join(f"{1000 * s:.0f}" for s in (t.forward_s, t.input_s, t.weight_s))
        return f"P={self.stages} M={self.micro}, F / dI / dW {parts} ms, 512 KB, {RATE}"


def make(setting: Setting, *, peer_names: Sequence[str], ways: Mapping[str, ours.Way]) -> Make:
    """Return what a rank builds."""

    def build(place: Place) -> Mapping[str, Runner]:
        joined, pace = Joined.at(place), Pace()
        subject = subject_of(setting, pace)
        steps = dict(peers.runners(place, subject, peer_names))
        for name, way in ways.items():
            engine = ours.engine_of(
                joined.link,
                way,
                world_size=place.size,
                modules=lambda: nn.Sequential(*subject.modules(setting.stages)),
                loss=lambda output, batch: mean_of_few(output, batch[1]),
                inputs=subject.inputs,
                targets=subject.targets,
                num_micro=setting.micro,
            )
            steps[name] = engine.run_step

        def paced(name: str) -> Runner:
            def run(round_: int) -> None:
                pace.factor = 0.0 if round_ < 0 else 1.0
                steps[name]()

            return run

        return {"message": timed_message(joined, 4 * WIDTH), **{name: paced(name) for name in steps}}

    return build


def subject_of(setting: Setting, pace: Pace) -> peers.Subject:
    """Return the model of a setting for both sides."""

    def modules(count: int) -> list[nn.Module]:
        return stage_modules(setting.times.split(count // setting.stages), pace, count=count, width=WIDTH)

    return peers.Subject(
        modules=modules,
        loss=mean_of_few,
        inputs=torch.zeros(setting.micro, 1),
        targets=torch.zeros(setting.micro, 1),
        num_micro=setting.micro,
        optimizer=peers.sgd,
    )


def compare(
    setting: Setting, options: Options, *, rounds: int, ways: Mapping[str, ours.Way] = WAYS
) -> tuple[Samples, float]:
    """Return the samples and the time of one message."""
    names = [*peers.ALL, *ways]
    samples = Samples()
    with (
        Network(setting.stages, RATE) as network,
        Ranks(network, make(setting, peer_names=peers.ALL, ways=ways)) as ranks,
    ):
        message_s = float(ranks.run("message").values[1])
        for name in names:
            options.say(f"  warm up {name}")
            ranks.run(name, -1)
        for _, name, run in in_turns(ranks, names, 1):
            options.keep(samples, 0, name, run)
        kept = [n for n in names if n not in peers.ALL or _is_worth_it(samples, n)]
        for round_, name, run in in_turns(ranks, kept, rounds - 1):
            options.keep(samples, round_ + 1, name, run)
    return samples, message_s


def _is_worth_it(samples: Samples, name: str) -> bool:
    if name in (peers.ONE_F_ONE_B, samples.best(peers.ONE_STAGE), samples.best(peers.WHOLE_BACKWARD)):
        return True
    return samples.step(name).median <= TOO_SLOW * samples.step(samples.best(peers.ALL)).median


def _rows(samples: Samples, setting: Setting, message_s: float) -> list[Row]:
    whole_s = setting.whole_limit_s(message_s)
    return [
        Row(
            name=n,
            step_s=samples.step(n),
            shares={"of whole-backward limit": samples.of_limit(n, whole_s).median},
        )
        for n in samples.names
    ]


def _case(name: str, setting: Setting, samples: Samples, message_s: float) -> Case:
    case = Case(name=name, title="emulated compute over slow links", settings=str(setting))
    case.rows = _rows(samples, setting, message_s)
    whole_s, split_s = setting.whole_limit_s(message_s), setting.split_limit_s(message_s)
    case.notes = [
        f"one message of 512 KB: {1000 * message_s:.1f} ms",
        f"limits: whole backwards {whole_s:.3f} s; split {split_s:.3f} s, or with two stages a rank "
        f"{setting.chunked_limit_s(message_s):.3f} s",
        f"best peer: {samples.best(peers.ALL)}",
        f"cost of bitwise: {samples.speedup(WHOLE_STATISTICAL, WHOLE).median:.3f} x statistical",
        samples.noise(),
    ]
    return case


def _against(
    samples: Samples, text: str, peer_names: Sequence[str], mine: Sequence[str], target: float
) -> Claim:
    peer, best = samples.best(peer_names), samples.best(mine)
    return Claim(text=f"{best} against {text} ({peer})", value=samples.speedup(best, peer), target=target)


def _of_limit(samples: Samples, name: str, limit_s: float, target: float) -> Claim:
    return Claim(text=f"{name}: share of its limit", value=samples.of_limit(name, limit_s), target=target)


def _bound(samples: Samples, what: str, limit_s: float, peer: str) -> str:
    most = samples.step(peer).median / limit_s
    return f"with {what} and one stage a rank nothing can be more than {most:.3f} times as fast as {peer}"


def short_units(name: str, stages: int, targets: tuple[float, float, float], options: Options) -> Case:
    """E1 and E2; `targets`: against the best peer, against Schedule1F1B, of the limit."""
    setting = Setting(stages=stages, micro=16, times=Times(forward_s=0.03, input_s=0.03, weight_s=0.03))
    samples, message_s = compare(setting, options, rounds=options.rounds(5))
    case = _case(name, setting, samples, message_s)
    mine = (WHOLE, SPLIT)
    case.claims = [
        _against(samples, "the best torch", peers.ALL, mine, targets[0]),
        _against(samples, "Schedule1F1B", (peers.ONE_F_ONE_B,), mine, targets[1]),
        _of_limit(samples, WHOLE, setting.whole_limit_s(message_s), targets[2]),
    ]
    return case


def e1(options: Options) -> Case:
    """P=4."""
    return short_units("E1", 4, (1.30, 1.60, 0.97), options)


def e2(options: Options) -> Case:
    """P=8."""
    return short_units("E2", 8, (1.25, 1.50, 0.96), options)


def e3(options: Options) -> Case:
    """P=8 with units so long that two cores are enough for every peer."""
    setting = Setting(stages=8, micro=16, times=Times(forward_s=0.1, input_s=0.1, weight_s=0.1))
    samples, message_s = compare(setting, options, rounds=options.rounds(3))
    case = _case("E3", setting, samples, message_s)
    case.claims = [
        _against(samples, "ZBV", (peers.ZBV,), (SPLIT,), 1.10),
        _against(samples, "the best whole-backward torch", peers.WHOLE_BACKWARD, (WHOLE,), 1.08),
        _against(samples, "the same with one stage a rank", peers.ONE_STAGE, (WHOLE,), 1.08),
        _of_limit(samples, SPLIT, setting.split_limit_s(message_s), 0.97),
    ]
    case.notes += [
        _bound(samples, "a split backward", setting.split_limit_s(message_s), peers.ZBV),
        _bound(
            samples, "whole backwards", setting.whole_limit_s(message_s), samples.best(peers.WHOLE_BACKWARD)
        ),
    ]
    return case
