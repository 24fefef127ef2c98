"""The ranks of a generation from their orders to their link: what they report, how they find each other."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.support.core_records import MODEL
from tests.support.fleet import plan_of
from varuna_runtime.spec.errors import PlanMismatch
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.layout import BatchShape, Plan
from varuna_runtime.worker.failing import StartFailed
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.link.tcp import TcpLink
from varuna_runtime.worker.ranks import Group, RankOrder

CPU = torch.device("cpu")
BATCH = BatchShape(batch_size=8, micro_batch_size=2, virtual_replicas=2)
PLAN = plan_of("2x2", num_segments=4, batch=BATCH)


def order(rank: int, *, plan: Plan = PLAN, secret: str = "s", host: str = "127.0.0.1") -> RankOrder:
    return RankOrder(
        job="j",
        generation=3,
        rank=rank,
        plan=plan,
        spec=JobSpec(name="j", entrypoint="train.py", batch_size=8, steps=1),
        model=MODEL,
        store_url="",
        resume_step=None,
        host=host,
        secret=secret,
    )


def joined(groups: list[Group]) -> list[Link]:
    endpoints = [group.endpoint for group in groups]

    def join(group: Group) -> Link:
        group.meet(endpoints)
        return group.join(CPU)

    try:
        with ThreadPoolExecutor(len(groups)) as pool:
            return list(pool.map(join, groups))
    finally:
        for group in groups:
            group.stop_listening()


def test_ranks_without_gpus_meet_over_connections_of_their_own() -> None:
    groups = [Group(order(rank)) for rank in range(4)]
    assert len({group.endpoint.port for group in groups} - {0}) == 4
    links = joined(groups)
    assert all(isinstance(link, TcpLink) for link in links)
    links[3].send(0, "t", (torch.tensor(7),))
    while (message := links[0].poll(3, "t")) is None:
        links[0].wait()
    assert int(message[0]) == 7
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda link: link.close(), links))


def test_ranks_of_different_plans_do_not_start() -> None:
    other = plan_of("2x2", num_segments=4, batch=BATCH, recompute=True)
    groups = [Group(order(rank, plan=other if rank == 2 else PLAN)) for rank in range(4)]
    with pytest.raises(PlanMismatch, match=r"rank 0 has plan .* rank 2 has"):
        joined(groups)


def test_a_generation_without_a_secret_does_not_start() -> None:
    with pytest.raises(StartFailed, match="without a secret"):
        joined([Group(order(rank, secret="")) for rank in range(4)])


@pytest.mark.parametrize("rank", [0, 1])
def test_an_address_of_another_machine_is_no_error_of_the_script(rank: int) -> None:
    with pytest.raises(StartFailed, match=r"nothing can listen on 192\.0\.2\.1: .*--host must be an address"):
        Group(order(rank, host="192.0.2.1"))
