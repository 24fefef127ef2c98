"""How the sums of replicas come together: which bytes travel, when, and to which bits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support import toys
from tests.support.driver import drive
from tests.support.fleet import NO_STEP, Fleet, settings_of
from varuna_runtime.spec.errors import PeerLost
from varuna_runtime.spec.job import Exactness, ReduceDtype
from varuna_runtime.spec.reduction import Node, combine, share
from varuna_runtime.worker.accumulate import BLOCK, BUCKET, Accumulator, Space, spaces_of
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.link.memory import MemoryLink, MemoryNetwork
from varuna_runtime.worker.reduce import StageReduction, Sum, Team
from varuna_runtime.worker.signals import run
from varuna_runtime.worker.training import Training

CPU = torch.device("cpu")
VIRTUAL = 8


class CountingNetwork(MemoryNetwork):
    """Adds up the bytes of gradients each rank sends."""

    def __init__(self, world_size: int) -> None:
        super().__init__(world_size)
        self.sent_bytes = [0] * world_size

    def put(self, source: int, to: int, tag: str, tensors: tuple[Tensor, ...]) -> None:
        if tag.startswith("gradients") and not tag.endswith("touched"):
            self.sent_bytes[source] += sum(t.nbytes for t in tensors)
        super().put(source, to, tag, tensors)


@dataclass
class Reducing:
    """Drives a reduction like steps."""

    reduction: StageReduction
    sums: Sequence[Sum] = ()

    def __post_init__(self) -> None:
        self.work = self.reduction.finished(lambda at, total: None)

    def advance(self) -> Any:
        try:
            return next(self.work)
        except StopIteration as end:
            self.sums = end.value
            return NO_STEP


def space_of(*sizes: int) -> Space:
    (space,) = spaces_of(0, [(f"p{i}", torch.empty(size, device="meta")) for i, size in enumerate(sizes)])
    return space


def reduced(
    space: Space, leaves: Sequence[Tensor], replicas: int, *, seed: int = 0, **how: Any
) -> tuple[list[Sum], CountingNetwork]:
    """Reduce one space; `leaves` are the sums of the virtual replicas."""
    network = CountingNetwork(replicas)
    works = []
    for replica in range(replicas):
        accumulator = Accumulator(space, CPU)
        owned = share(len(leaves), replicas, replica)
        accumulator.start(len(leaves), owned)
        for v in owned:
            accumulator.add(space.views(leaves[v].clone()))
            accumulator.finish_leaf(v)
        team = Team(link=network.link(replica), peers=tuple(range(replicas)), replica=replica, **how)
        reduction = StageReduction(team, [accumulator], [space.owner_ranges(replicas)])
        reduction.begin(len(leaves))
        works.append(Reducing(reduction))
    drive(network, works, seed=seed)
    return [work.sums[0] for work in works], network


def leaves_of(space: Space, virtual: int = VIRTUAL) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(space.offsets[-1], generator=generator) for _ in range(virtual)]


def canonical(leaves: Sequence[Tensor]) -> Tensor:
    return combine(Node(0, len(leaves)), {Node(i, i + 1): leaf for i, leaf in enumerate(leaves)}, torch.add)


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_buckets_come_together_in_the_canonical_order(replicas: int) -> None:
    space = space_of(2 * BUCKET + BLOCK + 7, 5, BLOCK)
    leaves = leaves_of(space, 5)
    for seed in range(2):
        sums, _ = reduced(space, leaves, replicas, seed=seed)
        assert all(total.flat.equal(canonical(leaves)) for total in sums)


@pytest.mark.parametrize("replicas", [2, 4])
def test_every_rank_sends_what_a_ring_would(replicas: int) -> None:
    space = space_of(replicas * BLOCK)
    _, network = reduced(space, leaves_of(space), replicas)
    size = 4 * replicas * BLOCK
    assert network.sent_bytes == [2 * (replicas - 1) * size // replicas] * replicas


@pytest.mark.parametrize("replicas", [2, 4])
def test_a_shared_optimizer_needs_half_of_that_for_sums(replicas: int) -> None:
    space = space_of(replicas * BLOCK)
    leaves = leaves_of(space)
    sums, network = reduced(space, leaves, replicas, is_sharded=True)
    size = 4 * replicas * BLOCK
    assert network.sent_bytes == [(replicas - 1) * size // replicas] * replicas
    assert torch.cat([total.flat for total in sums]).equal(canonical(leaves))


def test_bfloat16_on_the_wire_halves_the_bytes_and_leaves_replicas_equal() -> None:
    space = space_of(2 * BLOCK)
    leaves = leaves_of(space)
    sums, network = reduced(space, leaves, 2, wire_dtype=torch.bfloat16)
    _, plain = reduced(space, leaves, 2)
    assert [2 * n for n in network.sent_bytes] == plain.sent_bytes
    assert sums[0].flat.equal(sums[1].flat)
    assert sums[0].flat.dtype is torch.float32
    torch.testing.assert_close(sums[0].flat, canonical(leaves), rtol=2**-6, atol=2**-5)


class WorkingLink(MemoryLink):
    """Lets a test be the thread of the link."""

    work: Callable[[], None]

    def meanwhile(self, work: Callable[[], None]) -> None:
        self.work = work


def started(
    network: MemoryNetwork, space: Space, leaves: Sequence[Tensor]
) -> list[tuple[WorkingLink, StageReduction]]:
    """Two replicas that have handed over their sums."""
    found = []
    for replica in range(2):
        accumulator = Accumulator(space, CPU)
        owned = share(len(leaves), 2, replica)
        accumulator.start(len(leaves), owned)
        for v in owned:
            accumulator.add(space.views(leaves[v].clone()))
            accumulator.finish_leaf(v)
        link = WorkingLink(network, replica)
        team = Team(link=link, peers=(0, 1), replica=replica)
        reduction = StageReduction(team, [accumulator], [space.owner_ranges(2)])
        reduction.begin(len(leaves))
        reduction.start(0)
        found.append((link, reduction))
    return found


def test_what_the_links_thread_did_is_done() -> None:
    network, space = MemoryNetwork(2), space_of(2 * BUCKET + BLOCK, 5)
    leaves = leaves_of(space)
    replicas = started(network, space, leaves)
    for link, _ in (*replicas, *replicas):
        link.work()
    for _, reduction in replicas:
        (total,) = run(reduction.finished(lambda at, total: None), wait=lambda: pytest.fail("all is there"))
        assert total.flat.equal(canonical(leaves))


def test_what_the_links_thread_met_is_raised_where_the_rank_goes_on() -> None:
    network, space = MemoryNetwork(2), space_of(4)
    (link, reduction), _ = started(network, space, leaves_of(space))
    network.drop_messages()
    network.lose(1, "its node vanished")
    link.work()
    for _ in range(2):
        with pytest.raises(PeerLost, match="its node vanished"):
            reduction.advance()


def test_where_the_order_is_free_a_replica_hands_over_one_sum() -> None:
    sent = {}
    for exactness in Exactness:
        fleet = counted(toys.mlp_training(batch_size=32), "1x3", virtual_replicas=16, exactness=exactness)
        drive(fleet.network, fleet.engines, seed=0)
        sent[exactness] = sum(fleet.network.sent_bytes)
    assert sent[Exactness.STATISTICAL] < 0.7 * sent[Exactness.BITWISE]


def counted(training: Training, layout: str, **changes: Any) -> Any:
    """A fleet whose network counts; rebuilt, since engines keep their links."""
    fleet = Fleet(training, layout, **changes)
    return with_network(fleet, training, CountingNetwork(len(fleet.engines)), **changes)


def with_network(fleet: Fleet, training: Training, network: MemoryNetwork, **changes: Any) -> Fleet:
    options = {k: v for k, v in changes.items() if k not in ("virtual_replicas", "micro_batch_size")}
    settings = settings_of(training, fleet.plan.batch, **options)
    fleet.network = network
    fleet.engines = [
        RankEngine(training, settings, fleet.model, fleet.plan, network.link(rank))
        for rank in range(network.world_size)
    ]
    return fleet


class LoggingNetwork(MemoryNetwork):
    def __init__(self, world_size: int, log: list[str]) -> None:
        super().__init__(world_size)
        self.log = log

    def put(self, source: int, to: int, tag: str, tensors: tuple[Tensor, ...]) -> None:
        self.log.append(f"{source} sends {tag}")
        super().put(source, to, tag, tensors)


class Logged(nn.Module):
    """A linear layer that says when its backward runs."""

    log: list[str]  # of the class: an instance's would be copied with it

    def __init__(self, index: int) -> None:
        super().__init__()
        self.inner = nn.Linear(toys.WIDTH, toys.WIDTH if index < 2 else 3)
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        if out.requires_grad:
            out.register_hook(lambda _: self.log.append(f"backward {self.index}"))
        return out


def logging_fleet(log: list[str], layout: str = "1x2") -> Fleet:
    """Two replicas with a micro-batch each."""
    Logged.log = log
    training = toys.mlp_training(
        model=lambda: nn.Sequential(*(Logged(i) for i in range(3))), scheduler=None, batch_size=4
    )
    fleet = Fleet(training, layout, virtual_replicas=2)
    return with_network(fleet, training, LoggingNetwork(len(fleet.engines), log))


def test_a_segment_leaves_while_the_segments_before_it_still_run_backward() -> None:
    log: list[str] = []
    fleet = logging_fleet(log)
    while "0 sends gradients 0.0" not in log:
        fleet.engines[0].advance()
    assert log == [
        *("backward 2", "0 sends gradients 2.0 touched", "0 sends gradients 2.0"),
        *("backward 1", "0 sends gradients 1.0 touched", "0 sends gradients 1.0"),
        *("backward 0", "0 sends gradients 0.0 touched", "0 sends gradients 0.0"),
    ]


def test_what_the_stage_before_waits_for_is_sent_before_any_sum() -> None:
    log: list[str] = []
    fleet = logging_fleet(log, "2x2")
    drive(fleet.network, fleet.engines, seed=0)
    sent = [line.removeprefix("1 sends ") for line in log if line.startswith("1 sends gradients")]
    assert sent[0] == "gradients"
    assert {"gradients 1.0", "gradients 2.0"} <= set(sent[1:])


def test_sums_come_back_while_the_first_stage_still_runs_backward() -> None:
    log: list[str] = []
    fleet = logging_fleet(log)
    while "1 sends gradients 0.0" not in log:
        fleet.engines[1].advance()
    while "0 sends gradients 0.0" not in log:
        fleet.engines[0].advance()
    sums = [log.index(f"0 sends gradients {segment}.0 sum") for segment in (2, 1)]
    backwards = [log.index(f"backward {segment}", log.index("0 sends gradients 2.0")) for segment in (1, 0)]
    assert sums[0] < backwards[0] < sums[1] < backwards[1]


@pytest.mark.parametrize("shard_optimizer", [False, True])
@pytest.mark.parametrize("layout", ["1x2", "2x3"])
def test_sums_rounded_on_the_wire_train_alike_on_all_replicas(layout: str, shard_optimizer: bool) -> None:
    how = {"exactness": Exactness.STATISTICAL, "shard_optimizer": shard_optimizer}
    training = toys.tied_training()
    rounded = Fleet(training, layout, reduce_dtype=ReduceDtype.BF16, **how).train(2)
    exact = Fleet(training, layout, **how).train(2)
    assert rounded.steps[0].grad_norm != exact.steps[0].grad_norm
    assert rounded.steps[0].grad_norm == pytest.approx(exact.steps[0].grad_norm, rel=0.01)
