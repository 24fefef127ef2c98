"""Every implementation of RecordExchange behaves the same."""

from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from tests.support.checkpoints import Ranks, model_record, state
from varuna_runtime.checkpoint import MemoryExchange, RecordExchange, TcpStoreExchange, complete_steps
from varuna_runtime.spec.errors import PeerLost
from varuna_runtime.spec.layout import Layout
from varuna_runtime.store import open_store


def tcp_store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))


@pytest.fixture(params=["memory", "tcp"])
def exchange(request: pytest.FixtureRequest) -> RecordExchange:
    return MemoryExchange() if request.param == "memory" else TcpStoreExchange(tcp_store())


def test_a_value_is_returned_until_deleted(exchange: RecordExchange) -> None:
    assert exchange.get("a/b") is None
    exchange.put("a/b", b"\x00\xff")
    exchange.put("a/b", b"new")
    assert exchange.get("a/b") == b"new"
    exchange.delete("a/b")
    exchange.delete("a/b")
    assert exchange.get("a/b") is None


def test_large_values_pass(exchange: RecordExchange) -> None:
    exchange.put("large", bytes(2**21))
    assert exchange.get("large") == bytes(2**21)


def test_a_save_is_agreed_over_it(exchange: RecordExchange) -> None:
    store, model = open_store("memory://"), model_record()
    ranks = Ranks(store, layout=Layout(stages=2, replicas=2), model=model, exchange=exchange)
    assert all(ranks.save(step, state(model, step)) for step in (1, 2, 3))
    ranks.close()
    assert complete_steps(store, "job") == (1, 2, 3)


def test_a_store_that_went_away_is_a_lost_peer() -> None:
    host = tcp_store()
    client = TcpStoreExchange(TCPStore("127.0.0.1", host.port, is_master=False, timeout=timedelta(seconds=5)))
    client.put("a", b"x")
    del host
    for call in (client.get, client.delete):
        with pytest.raises(PeerLost, match="rank 0"):
            call("a")
