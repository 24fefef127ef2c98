"""E5: CPU of the runtime itself, per micro-batch and stage, where the model computes nothing."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from benchmarks import ours, peers
from benchmarks.joined import Joined, connected
from benchmarks.measure import Case, Claim, Row, Spread
from benchmarks.options import Options
from benchmarks.testbed import Loopback, Place, Ranks, Run, Runner
from varuna_runtime.spec.job import Exactness
from varuna_runtime.spec.layout import ScheduleKind

STAGES, MICRO, WIDTH, STEPS = 2, 32, 4096, 10
BARE = "autograd and a socket, by hand"
OURS = "ours 1F1B"
WAYS = {
    OURS: ours.Way(schedule=ScheduleKind.ONE_F_ONE_B),
    "ours work-conserving": ours.Way(schedule=ScheduleKind.WORK_CONSERVING),
    "ours zero-bubble": ours.Way(schedule=ScheduleKind.ZERO_BUBBLE),
    "ours 1F1B, statistical": ours.Way(schedule=ScheduleKind.ONE_F_ONE_B, exactness=Exactness.STATISTICAL),
}
PEERS = (peers.GPIPE, peers.ONE_F_ONE_B, peers.ASYNC_1F1B, peers.ZBV)


class Nothing(nn.Module):
    """`(m, width)` -> the same, one addition."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Return about x."""
        return x + self.weight


class _Bare:
    """The least a stage can do: a forward, a backward, a message in and one out."""

    def __init__(self, joined: Joined) -> None:
        self._connection = connected(joined)
        self._is_first = joined.place.rank == 0
        self._module = Nothing()

    def __call__(self) -> None:
        for _ in range(MICRO):
            if self._is_first:
                output = self._module(torch.zeros(1, WIDTH))
                self._send(output.detach())
                torch.autograd.grad([output], [self._module.weight], [self._received()])
            else:
                given = self._received().requires_grad_()
                found = torch.autograd.grad([self._module(given).mean()], [given, self._module.weight])
                self._send(found[0])

    def _send(self, tensor: Tensor) -> None:
        self._connection.sendall(tensor.contiguous().numpy().data)

    def _received(self) -> Tensor:
        tensor = torch.empty(1, WIDTH)
        left = tensor.numpy().data.cast("B")
        while left:
            left = left[self._connection.recv_into(left) :]
        return tensor


def build(place: Place) -> Mapping[str, Runner]:
    """Build every configuration on one rank."""
    joined = Joined.at(place)
    inputs, targets = torch.zeros(MICRO, WIDTH), torch.zeros(MICRO, 1)
    subject = peers.Subject(
        modules=lambda count: [Nothing() for _ in range(count)],
        loss=lambda output, target: output.mean(),
        inputs=inputs,
        targets=targets,
        num_micro=MICRO,
        optimizer=peers.sgd,
    )
    steps: dict[str, Callable[[], object]] = {BARE: _Bare(joined), **peers.runners(place, subject, PEERS)}
    for name, way in WAYS.items():
        steps[name] = ours.engine_of(
            joined.link,
            way,
            world_size=place.size,
            modules=lambda: nn.Sequential(*(Nothing() for _ in range(STAGES))),
            loss=lambda output, batch: output.mean(),
            inputs=inputs,
            targets=targets,
            num_micro=MICRO,
        ).run_step

    def repeated(name: str) -> Runner:
        def run(_: int) -> None:
            for _ in range(STEPS):
                steps[name]()

        return run

    return {name: repeated(name) for name in steps}


def e5(options: Options) -> Case:
    """Two ranks on loopback."""
    runs: dict[str, list[Run]] = {}
    network = Loopback(STAGES)
    with network, Ranks(network, build) as ranks:
        for round_ in range(-1, options.rounds(9)):
            for name in (BARE, *PEERS, *WAYS):
                run = ranks.run(name, round_)
                if round_ >= 0:
                    runs.setdefault(name, []).append(run)
    per_op = STAGES * MICRO * STEPS
    cpu_s = {name: Spread.of([sum(run.cpu_s) / per_op for run in found]) for name, found in runs.items()}
    wall_s = {
        name: Spread.of([run.wall_s / (MICRO * STEPS) for run in found]) for name, found in runs.items()
    }
    case = Case(
        name="E5",
        title="CPU of the runtime per micro-batch and stage, zero compute",
        settings=f"P={STAGES} M={MICRO}, 16 KB activations, loopback, all threads of the process; "
        "the time is the wall time of one micro-batch",
    )
    case.rows = [
        Row(name=n, step_s=wall_s[n], shares={"CPU ms per micro-batch and stage": 1000 * cpu_s[n].median})
        for n in runs
    ]
    case.claims = [
        Claim(
            text=f"CPU of {OURS}, as a share of torch 1F1B's",
            value=_share(runs[OURS], runs[peers.ONE_F_ONE_B]),
            target=0.8 / 1.1,
            at_most=True,
        ),
        Claim(
            text=f"CPU of {OURS}, as a multiple of the least possible",
            value=_share(runs[OURS], runs[BARE]),
            target=0.8 / 0.4,
            at_most=True,
        ),
    ]
    case.notes = [
        f"{OURS}: {1000 * cpu_s[OURS].median:.3f} ms on this machine; the aim on the reference machine is 0.8"
    ]
    return case


def _share(mine: list[Run], theirs: list[Run]) -> Spread:
    return Spread.of([sum(a.cpu_s) / sum(b.cpu_s) for a, b in zip(mine, theirs, strict=True)])
