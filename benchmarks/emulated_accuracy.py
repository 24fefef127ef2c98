"""Step times of emulated jobs over slow links, predicted and measured with the real engine."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks import ours
from benchmarks.emulated import First, Pace, Work, mean_of_few
from benchmarks.emulation import (
    SEGMENTS,
    UNIT_S,
    Constants,
    Emulation,
    Job,
    Lone,
    StageSize,
    emulations,
    predicted_s,
)
from benchmarks.joined import Joined
from benchmarks.measure import Case, Claim, Row, Samples, Spread
from benchmarks.options import Options
from benchmarks.ranking import Predicted, kendall_tau, max_error, mean_error, ranked_pairs, regret
from benchmarks.testbed import Make, Network, Place, Ranks, Runner, in_turns
from varuna_runtime.spec.layout import ScheduleKind
from varuna_runtime.spec.schedule import OpKind
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.link_probe import measure_link
from varuna_runtime.worker.signals import StepDone, Waiting

RATE = "100mbit"
PROBES = 7
LONE_MICRO = 6
QUICK = 7  # every so manieth emulation when it has to be quick
SAME = 0.02  # share by which measured times differ without telling an order
PROBE, LINK = "probe", "link"


def case(options: Options) -> Case:
    """Run all emulations on as few networks as hold them; return errors, ranking and regret."""
    chosen = emulations()[:: QUICK if options.quick else 1]
    found = Case(
        name="emulated",
        title="compute that sleeps, over slow links",
        settings=f"{SEGMENTS} segments of {1000 * UNIT_S:.0f} ms a forward and twice that a backward, {RATE}",
    )
    pairs: list[tuple[Emulation, Predicted]] = []
    by_size = sorted(chosen, key=lambda e: _network_size(e))
    for size, group in groupby(by_size, key=_network_size):
        options.say(f" {size} ranks")
        pairs += _measured(found, tuple(group), size, options)
    rows = [row for _, row in pairs]
    found.claims = [
        _at_most("mean error", mean_error(rows), 0.02),
        _at_most("max error", max_error(rows), 0.05),
        Claim(text="Kendall tau", value=Spread.of([_tau(pairs)]), target=0.9),
        _at_most("largest regret", max(_regrets(pairs)), 0.02),
    ]
    return found


def _network_size(emulation: Emulation) -> int:
    return 8 if emulation.layout.world_size <= 8 else 16


def _measured(
    found: Case, chosen: Sequence[Emulation], size: int, options: Options
) -> list[tuple[Emulation, Predicted]]:
    """Calibrate, predict and measure on one network."""
    samples = Samples()
    names = [str(emulation) for emulation in chosen]
    with Network(size, RATE) as network, Ranks(network, make(chosen)) as ranks:
        constants = _calibrated(ranks, chosen)
        for name in names:
            ranks.run(name, -1)
        for round_, name, run in in_turns(ranks, names, options.rounds(3)):
            options.keep(samples, round_, name, run)
    pairs = []
    for emulation, name in zip(chosen, names, strict=True):
        spread = samples.step(name)
        row = Predicted(
            layout=emulation.layout,
            predicted_s=predicted_s(emulation, constants),
            measured_s=spread.median,
        )
        pairs.append((emulation, row))
        found.rows.append(
            Row(name=name, step_s=spread, shares={"predicted": row.predicted_s, "error": row.error})
        )
    found.notes += [*_told(constants, size), f"{size} ranks: {samples.noise()}"]
    return pairs


def _calibrated(ranks: Ranks, chosen: Sequence[Emulation]) -> Constants:
    """Measure what the predictions need; no emulation runs here."""
    send_s = {
        n: float(ranks.run(_probe_name(n)).values[0]) for n in sorted({e.job.message_bytes for e in chosen})
    }
    lone = {size: ranks.run(str(size)).values[0] for size in sorted({e.stage_size for e in chosen})}
    return Constants(link=ranks.run(LINK).values[0], send_s=send_s, lone=lone)


def measuring(link: Link) -> Runner:
    """Return a runner that returns what the link between ranks 0 and 1 costs, on those."""
    if link.rank > 1:
        return _idle
    return lambda _: measure_link(link, 1 - link.rank, clock=time.monotonic)


def _probe_name(num_bytes: int) -> str:
    return f"{PROBE} {num_bytes}"


def make(chosen: Sequence[Emulation]) -> Make:
    """Return what a rank builds: the emulations it takes part in, and what calibrates them."""

    def build(place: Place) -> Mapping[str, Runner]:
        link, pace = Joined.at(place).link, Pace()
        runners: dict[str, Runner] = {LINK: measuring(link)}
        for emulation in chosen:
            takes_part = place.rank < emulation.layout.world_size
            runners[str(emulation)] = _stepping(emulation, link, pace) if takes_part else _idle
        for num_bytes in {e.job.message_bytes for e in chosen}:
            runners[_probe_name(num_bytes)] = _handing_over(link, num_bytes)
        for size in {e.stage_size for e in chosen}:
            runners[str(size)] = _lone(link, size) if place.rank == 0 else _idle
        return runners

    return build


def _idle(_: int) -> None:
    """Leave it to the others."""


def _stepping(emulation: Emulation, link: Link, pace: Pace) -> Runner:
    job, layout = emulation.job, emulation.layout
    way = ours.Way(schedule=emulation.schedule, recompute=emulation.recompute, replicas=layout.replicas)
    engine = ours.engine_of(
        link,
        way,
        world_size=layout.world_size,
        modules=lambda: nn.Sequential(*_modules(job, range(SEGMENTS), pace)),
        loss=lambda output, batch: mean_of_few(output, batch[1]),
        inputs=torch.zeros(job.samples, 1),
        targets=torch.zeros(job.samples, 1),
        num_micro=job.samples // job.rows,
    )

    def run(round_: int) -> None:
        pace.factor = 0.0 if round_ < 0 else 1.0
        engine.run_step()

    return run


def _modules(job: Job, segments: Iterable[int], pace: Pace) -> list[nn.Module]:
    first, *rest = segments
    sizes = {"rows": job.rows, "num_weights": job.num_weights}
    return [
        First(job.times(first), pace, job.width, **sizes),
        *(Work(job.times(i), pace, **sizes) for i in rest),
    ]


def _handing_over(link: Link, num_bytes: int) -> Runner:
    """Return a runner that returns what it takes to hand over a message, on rank 0; rank 1 answers."""
    if link.rank > 1:
        return _idle
    payload = torch.zeros(num_bytes, dtype=torch.uint8)

    def send_one() -> float:
        started_s = time.monotonic()
        link.send(1, PROBE, (payload,))
        taken_s = time.monotonic() - started_s
        _next(link, 1)
        return taken_s

    def answer_one() -> float:
        _next(link, 0)
        link.send(0, PROBE, (torch.zeros(1),))
        return 0.0

    one = send_one if link.rank == 0 else answer_one
    return lambda _: median([one() for _ in range(PROBES)][1:])


def _next(link: Link, source: int) -> tuple[Tensor, ...]:
    while (message := link.poll(source, PROBE)) is None:
        link.wait()
    return message


def _lone(link: Link, size: StageSize) -> Runner:
    """Return a runner that measures a stage alone, with whole backwards and with split ones."""
    job, pace = Job(width=size.width, samples=LONE_MICRO, num_weights=size.num_weights), Pace()

    def engine(schedule: ScheduleKind) -> RankEngine:
        return ours.engine_of(
            link,
            ours.Way(schedule=schedule),
            world_size=1,
            modules=lambda: nn.Sequential(*_modules(job, range(size.num_segments), pace)),
            loss=lambda output, batch: mean_of_few(output, batch[1]),
            inputs=torch.zeros(LONE_MICRO, 1),
            targets=torch.zeros(LONE_MICRO, 1),
            num_micro=LONE_MICRO,
        )

    whole, split = engine(ScheduleKind.ONE_F_ONE_B), engine(ScheduleKind.ZERO_BUBBLE)
    sleeps_s = {kind: size.num_segments * UNIT_S * (2 if kind is OpKind.BACKWARD else 1) for kind in OpKind}

    def run(_: int) -> Lone:
        step = _timed(whole)
        took_s = {**step.op_s, **_timed(split).op_s}
        beyond_s = {kind: seconds - sleeps_s[kind] for kind, seconds in took_s.items()}
        return Lone(beyond_s=beyond_s, beside_s=step.beside_s)

    return run


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One step of one rank: the median of each kind of op, and what was not in an op."""

    op_s: Mapping[OpKind, float]
    beside_s: float


def _timed(engine: RankEngine) -> _Step:
    """Return the times of the second of two steps."""
    engine.run_step()
    op_s: dict[OpKind, list[float]] = {}
    begun_s = last_s = time.monotonic()
    done = 0
    while not isinstance(signal := engine.advance(), StepDone):
        assert not isinstance(signal, Waiting), "a lone rank waits for nobody"
        now_s = time.monotonic()
        ran = engine.realised
        if len(ran) > done:
            op_s.setdefault(ran[-1].kind, []).append(now_s - last_s)
        done, last_s = len(ran), now_s
    in_ops_s = sum(map(sum, op_s.values()))
    return _Step(
        op_s={kind: median(times) for kind, times in op_s.items()},
        beside_s=time.monotonic() - begun_s - in_ops_s,
    )


def _tau(pairs: Sequence[tuple[Emulation, Predicted]]) -> float:
    """Return the share of pairs of layouts of one job that are ranked rightly, less the others."""
    groups = _by_job(pairs)
    counted = [(kendall_tau(rows, same=SAME), len(ranked_pairs(rows, same=SAME))) for rows in groups]
    total = sum(n for _, n in counted)
    return sum(tau * n for tau, n in counted) / total if total else 1.0


def _regrets(pairs: Sequence[tuple[Emulation, Predicted]]) -> list[float]:
    """Return what the layout predicted fastest costs, for each job."""
    found = [regret(rows, max(row.layout.world_size for row in rows)) for rows in _by_job(pairs)]
    return [one.share for one in found if one is not None]


def _by_job(pairs: Sequence[tuple[Emulation, Predicted]]) -> list[list[Predicted]]:
    found: dict[Job, list[Predicted]] = {}
    for emulation, row in pairs:
        found.setdefault(emulation.job, []).append(row)
    return list(found.values())


def _told(constants: Constants, size: int) -> list[str]:
    link = constants.link
    beyond = {
        kind: median(lone.beyond_s[kind] for lone in constants.lone.values())
        for kind in (OpKind.FORWARD, OpKind.BACKWARD)
    }
    ops = ", ".join(f"{kind} {1000 * seconds:.2f} ms" for kind, seconds in beyond.items())
    beside_s = median(lone.beside_s for lone in constants.lone.values())
    return [
        f"{size} ranks: link {link.bandwidth_bps / 1e6:.1f} Mbit/s, {1000 * link.latency_s:.2f} ms; "
        f"beyond the sleep {ops}; a step beside its ops {1000 * beside_s:.2f} ms"
    ]


def _at_most(text: str, value: float, target: float) -> Claim:
    return Claim(text=text, value=Spread.of([value]), target=target, at_most=True)
