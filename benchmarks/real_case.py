"""E4: a real GPT on two cores; the limit is what two trainings reach that know nothing of each other."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import ours, peers
from benchmarks.joined import Joined
from benchmarks.measure import Case, Claim, Row, Samples, Spread
from benchmarks.options import Options
from benchmarks.testbed import Loopback, Network, Place, Ranks, Runner, in_turns
from examples.gpt.model import NUM_BYTES, Head, build_model
from varuna_runtime.spec.job import Exactness
from varuna_runtime.spec.layout import ScheduleKind

STAGES, MICRO, ROWS, SEQUENCE, WIDTH, BLOCKS = 2, 8, 2, 128, 256, 8
ALONE = "two trainings that share nothing"
OURS = "ours work-conserving"
STATISTICAL = "ours work-conserving, statistical"
WAYS = {
    OURS: ours.Way(schedule=ScheduleKind.WORK_CONSERVING),
    STATISTICAL: ours.Way(schedule=ScheduleKind.WORK_CONSERVING, exactness=Exactness.STATISTICAL),
}
PEERS = (peers.GPIPE, peers.ONE_F_ONE_B, peers.ASYNC_1F1B, peers.ZBV)


def gpt() -> nn.Sequential:
    """Return the model; its head is not tied, which no peer could train in two stages."""
    model = build_model(width=WIDTH, heads=4, blocks=BLOCKS, context=SEQUENCE, dropout=0.0)
    model[-1] = Head(WIDTH, nn.Parameter(torch.empty(NUM_BYTES, WIDTH).normal_(std=0.02)))
    return model


def loss(output: Tensor, tokens: Tensor) -> Tensor:
    """Cross entropy of the next byte."""
    return functional.cross_entropy(output.reshape(-1, NUM_BYTES), tokens.reshape(-1))


def build(place: Place) -> Mapping[str, Runner]:
    """Build every configuration on one rank."""
    joined = Joined.at(place)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(NUM_BYTES, (MICRO * ROWS, SEQUENCE + 1), generator=generator)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    torch.manual_seed(0)
    subject = peers.Subject(
        modules=_pieces, loss=loss, inputs=inputs, targets=targets, num_micro=MICRO, optimizer=adamw
    )
    steps: dict[str, Callable[[], object]] = {ALONE: partial(_alone, _Alone(), inputs, targets)}
    steps |= peers.runners(place, subject, PEERS)
    for name, way in WAYS.items():
        steps[name] = ours.engine_of(
            joined.link,
            way,
            world_size=place.size,
            modules=gpt,
            loss=lambda output, batch: loss(output, batch[1]),
            inputs=inputs,
            targets=targets,
            num_micro=MICRO,
            optimizer=adamw,
        ).run_step
    return {name: partial(_quiet, step) for name, step in steps.items()}


def _quiet(step: Callable[[], object], _: int) -> None:
    step()


def _pieces(count: int) -> list[nn.Module]:
    children = list(gpt())
    cuts = [i * len(children) // count for i in range(count + 1)]
    return [nn.Sequential(*children[a:b]) for a, b in pairwise(cuts)]


def adamw(parameters: object) -> torch.optim.Optimizer:
    """Return AdamW, parameter by parameter."""
    return torch.optim.AdamW(parameters, lr=1e-4, foreach=False)  # type: ignore[arg-type]  # named or not


class _Alone:
    """The same training in one process."""

    def __init__(self) -> None:
        self.model = gpt()
        self.optimizer = adamw(self.model.parameters())


def _alone(training: _Alone, inputs: Tensor, targets: Tensor) -> None:
    training.optimizer.zero_grad()
    for x, y in zip(inputs.chunk(MICRO), targets.chunk(MICRO), strict=True):
        loss(training.model(x), y).backward()  # type: ignore[no-untyped-call]
    training.optimizer.step()


def e4(options: Options) -> Case:
    """Loopback, then 200 Mbit."""
    case = Case(
        name="E4",
        title="a real GPT on two cores",
        settings=f"P={STAGES} M={MICRO}, {BLOCKS} blocks of width {WIDTH}, sequence {SEQUENCE}, "
        f"{ROWS} rows a micro-batch, AdamW, one thread a rank",
    )
    rounds = options.rounds(9)
    options.say(" loopback")
    _measure(case, Loopback(STAGES), "loopback", options, rounds, of_limit=0.95, of_1f1b=1.0)
    options.say(" 200 Mbit")
    _measure(case, Network(STAGES, "200mbit"), "200 Mbit", options, rounds, of_limit=None, of_1f1b=1.2)
    return case


def _measure(
    case: Case,
    network: Network | Loopback,
    where: str,
    options: Options,
    rounds: int,
    *,
    of_limit: float | None,
    of_1f1b: float,
) -> None:
    names = [ALONE, *PEERS, *WAYS]
    samples = Samples()
    with network, Ranks(network, build) as ranks:
        for name in names:
            ranks.run(name, -1)
        for round_, name, run in in_turns(ranks, names, rounds):
            options.keep(samples, round_, name, run)
    shares = {name: _of_limit(samples, name) for name in names if name != ALONE}
    case.rows += [_row(samples, name, where, shares) for name in names]
    if of_limit is not None:
        case.claims.append(
            Claim(text=f"{OURS}, {where}: share of the limit", value=shares[OURS], target=of_limit)
        )
    case.claims.append(
        Claim(
            text=f"{OURS}, {where}: against Schedule1F1B",
            value=samples.speedup(OURS, peers.ONE_F_ONE_B),
            target=of_1f1b,
        )
    )
    best = samples.best(PEERS)
    case.notes += [
        f"{where}: against the best torch ({best}) {samples.speedup(OURS, best).median:.3f}",
        f"{where}: cost of bitwise {samples.speedup(STATISTICAL, OURS).median:.3f} x statistical",
        f"{where}: {samples.noise()}",
    ]


def _of_limit(samples: Samples, name: str) -> Spread:
    """Two batches in the time of ALONE, shared by the pipeline's bubble: that long a batch has to take."""
    bubble = (MICRO + STAGES - 1) / MICRO
    speedup = samples.speedup(name, ALONE)
    scale = bubble / STAGES
    return Spread(
        median=speedup.median * scale, low=speedup.low * scale, high=speedup.high * scale, count=speedup.count
    )


def _row(samples: Samples, name: str, where: str, shares: Mapping[str, Spread]) -> Row:
    found = {"of the limit": shares[name].median} if name in shares else {}
    return Row(name=f"{where}: {name}", step_s=samples.step(name), shares=found)
