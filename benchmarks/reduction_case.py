"""E7: sums of gradients over replicas on slow links, alone and behind the backward, against gloo."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from benchmarks import ours, raw
from benchmarks.emulated import Pace
from benchmarks.joined import Joined
from benchmarks.measure import Case, Claim, Row, Samples, Spread
from benchmarks.options import Options
from benchmarks.testbed import Network, Place, Ranks, Runner, in_turns
from varuna_runtime.spec.job import Exactness, ReduceDtype
from varuna_runtime.spec.layout import ScheduleKind

BUCKETS = 16
ELEMENTS = 1 << 19  # of one bucket; 34 MB in all
LINE_BPS = 200e6
CEILING = 0.957  # of the line rate, what is left for the payload of TCP
GLOO, GLOO_OVERLAPPED = "gloo all_reduce", "gloo all_reduce, async buckets"
RAW = "plain sockets, the same bytes from all to all"
BITWISE, STATISTICAL, HALF = "ours bitwise", "ours statistical", "ours bf16 on the wire"
OVERLAPPED = "ours bitwise, behind the backward"
STATISTICAL_OVERLAPPED = "ours statistical, behind the backward"
WAYS = {
    BITWISE: ours.Way(schedule=ScheduleKind.ONE_F_ONE_B),
    STATISTICAL: ours.Way(schedule=ScheduleKind.ONE_F_ONE_B, exactness=Exactness.STATISTICAL),
    HALF: ours.Way(
        schedule=ScheduleKind.ONE_F_ONE_B,
        exactness=Exactness.STATISTICAL,
        reduce_dtype=ReduceDtype.BF16,
    ),
}
LIMIT_OVERLAPPED = "of the overlap limit"


def num_bytes() -> int:
    """Size of the gradients."""
    return 4 * BUCKETS * ELEMENTS


def wire_s(replicas: int, rate_bps: float = LINE_BPS * CEILING) -> float:
    """Return the time of a ring all-reduce at full rate."""
    return 2 * (replicas - 1) / replicas * 8 * num_bytes() / rate_bps


class _Dense(torch.autograd.Function):
    """Identity in x whose backward takes time and gives every weight a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, seconds: float, pace: Pace) -> Tensor:
        ctx.shape, ctx.seconds, ctx.pace = weight.shape, seconds, pace
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        ctx.pace.sleep(ctx.seconds)
        return gradient, torch.ones(ctx.shape), None, None


class Bucket(nn.Module):
    """`(m, 1)` -> the same, with many weights and a backward of `seconds`."""

    def __init__(self, seconds: float, pace: Pace) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ELEMENTS))
        self.seconds, self.pace = seconds, pace

    def forward(self, x: Tensor) -> Tensor:
        """Return x."""
        out: Tensor = _Dense.apply(x, self.weight, self.seconds, self.pace)  # type: ignore[no-untyped-call]
        return out


def build(place: Place) -> Mapping[str, Runner]:
    """Build every configuration on one rank."""
    joined, pace = Joined.at(place), Pace()
    backward_s = wire_s(place.size) / BUCKETS

    def modules() -> list[nn.Module]:
        return [Bucket(backward_s, pace) for _ in range(BUCKETS)]

    steps: dict[str, Callable[[], object]] = {}
    for name, way in WAYS.items():
        steps[name] = ours.engine_of(
            joined.link,
            replace(way, replicas=place.size),
            world_size=place.size,
            modules=lambda: nn.Sequential(*modules()),
            loss=lambda output, batch: output.mean(),
            inputs=torch.zeros(place.size, 1),
            targets=torch.zeros(place.size, 1),
            num_micro=place.size,
        ).run_step
    steps[OVERLAPPED], steps[STATISTICAL_OVERLAPPED] = steps[BITWISE], steps[STATISTICAL]
    steps[RAW] = raw.exchange(joined, 2 * num_bytes() // place.size)
    steps[GLOO] = _Gloo(modules(), is_overlapped=False)
    steps[GLOO_OVERLAPPED] = _Gloo(modules(), is_overlapped=True)

    def runner(name: str) -> Runner:
        def run(round_: int) -> None:
            pace.factor = float(name in (OVERLAPPED, STATISTICAL_OVERLAPPED, GLOO_OVERLAPPED))
            steps[name]()

        return run

    return {name: runner(name) for name in steps}


class _Gloo:
    """The same step by hand: backward, all_reduce, division, norm, optimizer."""

    def __init__(self, modules: Sequence[nn.Module], *, is_overlapped: bool) -> None:
        self._model = nn.Sequential(*modules)
        self._parameters = list(self._model.parameters())
        self._optimizer = torch.optim.SGD(self._parameters, lr=0.01)
        self._pending: list[dist.Work] = []
        for parameter in self._parameters if is_overlapped else ():
            parameter.register_post_accumulate_grad_hook(self._start)  # type: ignore[no-untyped-call]

    def _start(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        work = dist.all_reduce(parameter.grad, async_op=True)
        assert work is not None
        self._pending.append(work)

    def __call__(self) -> None:
        self._optimizer.zero_grad()
        self._model(torch.zeros(1, 1, requires_grad=True)).mean().backward()
        if not self._pending:
            for parameter in reversed(self._parameters):
                self._start(parameter)
        for work in self._pending:
            work.wait()
        self._pending.clear()
        for parameter in self._parameters:
            assert parameter.grad is not None
            parameter.grad.div_(dist.get_world_size())
        torch.nn.utils.clip_grad_norm_(self._parameters, float("inf"))
        self._optimizer.step()


def e7(options: Options) -> Case:
    """D=2 and D=4."""
    case = Case(
        name="E7",
        title="gradient sums over replicas",
        settings=f"{num_bytes() / 1e6:.0f} MB of float32 in {BUCKETS} segments, 200mbit at every sender; "
        "behind the backward: a backward as long as the sums",
    )
    for replicas in (2, 4):
        _measure(case, replicas, options)
    return case


def _measure(case: Case, replicas: int, options: Options) -> None:
    names = [GLOO, RAW, BITWISE, STATISTICAL, HALF, GLOO_OVERLAPPED, OVERLAPPED, STATISTICAL_OVERLAPPED]
    samples = Samples()
    with Network(replicas, "200mbit") as network, Ranks(network, build) as ranks:
        for name in names[:5]:
            ranks.run(name, -1)
        for round_, name, run in in_turns(ranks, names, options.rounds(5)):
            options.keep(samples, round_, f"D={replicas} {name}", run)
    own = {name: f"D={replicas} {name}" for name in names}
    pairs = {GLOO_OVERLAPPED: GLOO, OVERLAPPED: BITWISE, STATISTICAL_OVERLAPPED: STATISTICAL}
    for name in names:
        shares = {"of the line's payload": wire_s(replicas) / samples.step(own[name]).median}
        if name in pairs:
            shares = {LIMIT_OVERLAPPED: _overlap(samples, own[name], own[pairs[name]], replicas).median}
        case.rows.append(Row(name=own[name], step_s=samples.step(own[name]), shares=shares))
    for name in (BITWISE, STATISTICAL):
        case.claims.append(
            Claim(text=f"{own[name]} against gloo", value=samples.speedup(own[name], own[GLOO]), target=0.97)
        )
    case.claims.append(
        Claim(text=f"{own[HALF]} against gloo", value=samples.speedup(own[HALF], own[GLOO]), target=1.8)
    )
    case.claims.append(
        Claim(
            text=f"{own[OVERLAPPED]}: share of its overlap limit",
            value=_overlap(samples, own[OVERLAPPED], own[BITWISE], replicas),
            target=0.95,
        )
    )
    of_raw = samples.speedup(own[BITWISE], own[RAW]).median
    cost = samples.speedup(own[STATISTICAL], own[BITWISE]).median
    case.notes.append(
        f"D={replicas}: bitwise against plain sockets {of_raw:.3f}; "
        f"cost of bitwise {cost:.3f} x statistical; {samples.noise()}"
    )


def _overlap(samples: Samples, name: str, alone: str, replicas: int) -> Spread:
    """The first bucket's backward, then nothing but communication, which takes as long as it does alone."""
    return samples.of_limit(name, wire_s(replicas) / BUCKETS + samples.step(alone).median)
