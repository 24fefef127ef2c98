"""The meeting of a generation's ranks at rank 0's store, on loopback."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from varuna_runtime.spec.errors import PeerLost, PlanMismatch
from varuna_runtime.worker.link.group import host_store, join_store
from varuna_runtime.worker.link.meeting import DidNotMeet
from varuna_runtime.worker.rendezvous import Rendezvous

HOST = "127.0.0.1"


def test_every_rank_hears_every_word_and_a_rank_of_another_plan_is_named() -> None:
    served = host_store(HOST)
    meetings = [Rendezvous(join_store(HOST, served.port), rank=rank, world_size=3) for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        words = list(pool.map(lambda m: m.gather("device", "cpu"), meetings))
        assert words == [["cpu"] * 3] * 3
        agreeing = [pool.submit(m.agree, "plan", word) for m, word in zip(meetings, "aab", strict=True)]
        with pytest.raises(PlanMismatch, match="rank 0 has plan a, rank 2 has b"):
            agreeing[0].result()
        with pytest.raises(PlanMismatch):
            agreeing[2].result()


def test_ranks_that_do_not_come_are_named() -> None:
    served = host_store(HOST)
    meeting = Rendezvous(join_store(HOST, served.port, timeout_s=1.0), rank=1, world_size=4)
    with pytest.raises(DidNotMeet, match="ranks 0, 2, 3 did not come"):
        meeting.gather("plan", "a")


def test_a_store_that_is_gone_is_the_loss_of_rank_0() -> None:
    served = host_store(HOST)
    meeting = Rendezvous(join_store(HOST, served.port, timeout_s=1.0), rank=1, world_size=2)
    del served
    with pytest.raises(PeerLost, match="rank 0 is gone"):
        meeting.gather("plan", "a")
