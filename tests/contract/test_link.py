"""What every Link promises, checked on the in-memory one, on torch.distributed and on our own connections."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from socket import socket

import pytest
import torch
from torch import Tensor

from varuna_runtime.spec.errors import PeerFailed, PeerLost
from varuna_runtime.spec.generation import Cause, Fault
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.link.dist import DistLink
from varuna_runtime.worker.link.group import form_group, host_store, join_store
from varuna_runtime.worker.link.handshake import Identity
from varuna_runtime.worker.link.meeting import meet
from varuna_runtime.worker.link.memory import MemoryLink, MemoryNetwork
from varuna_runtime.worker.link.sockets import listen
from varuna_runtime.worker.link.tcp import TcpLink

Pair = tuple[Link, Link]


def over_gloo() -> Pair:
    store = host_store("127.0.0.1")

    def join(rank: int) -> Link:
        mine = store if rank == 0 else join_store("127.0.0.1", store.port)
        group = form_group(rank=rank, world_size=2, host="127.0.0.1", store=mine, generation=1, timeout_s=60)
        return DistLink(group, [1 - rank])

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(join, range(2))
    return first, second


def in_memory() -> Pair:
    network = MemoryNetwork(2)
    return network.link(0), network.link(1)


def over_gloo_beside() -> Pair:
    """As where there are GPUs: a group, and connections of our own beside it."""
    store = host_store("127.0.0.1")
    connect = meeting()

    def join(rank: int) -> Link:
        mine = store if rank == 0 else join_store("127.0.0.1", store.port)
        beside = connect(rank)
        group = form_group(rank=rank, world_size=2, host="127.0.0.1", store=mine, generation=1, timeout_s=60)
        return DistLink(group, [1 - rank], beside)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(join, range(2))
    return first, second


def meeting() -> Callable[[int], dict[int, socket]]:
    """Return what each of two ranks calls for its connection with the other."""
    listener = listen("127.0.0.1")
    addresses = {1: ("127.0.0.1", listener.getsockname()[1])}

    def connect(rank: int) -> dict[int, socket]:
        me = Identity(job="j", generation=1, rank=rank, secret="s")
        return meet(me, listener if rank else None, addresses, [1 - rank], timeout_s=60)

    return connect


def over_tcp() -> Pair:
    connect = meeting()

    def join(rank: int) -> Link:
        return TcpLink(rank, connect(rank))

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(join, range(2))
    return first, second


@pytest.fixture(params=[in_memory, over_gloo, over_gloo_beside, over_tcp])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    links: Pair = request.param()
    yield links
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda link: link.close(), links))


def awaited(link: Link, source: int, tag: str) -> tuple[Tensor, ...]:
    while (message := link.poll(source, tag)) is None:
        link.wait()
    return message


def test_messages_of_a_tag_arrive_in_order_and_tags_do_not_mix(pair: Pair) -> None:
    for value in range(3):
        pair[0].send(1, "a", (torch.tensor(value),))
        pair[0].send(1, "b", (torch.tensor(10 + value),))
    assert [int(awaited(pair[1], 0, "b")[0]) for _ in range(3)] == [10, 11, 12]
    assert [int(awaited(pair[1], 0, "a")[0]) for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(4, 3).T,
        torch.randn(2, 2, requires_grad=True),
        torch.tensor(7),
        torch.empty(0, 5),
        torch.tensor([True, False]),
        torch.randn(6).to(torch.bfloat16),
        torch.randn(2, dtype=torch.float64),
        torch.tensor([1, 2**40], dtype=torch.uint64),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.randn(1 << 19)[3:],
    ],
    ids=[
        "plain",
        "strided",
        "gradient",
        "scalar",
        "empty",
        "bool",
        "bfloat16",
        "float64",
        "uint64",
        "conjugate",
        "large",
    ],
)
def test_a_tensor_keeps_values_shape_type_and_gradient_flag(pair: Pair, tensor: Tensor) -> None:
    pair[0].send(1, "t", (tensor,))
    (received,) = awaited(pair[1], 0, "t")
    assert received.equal(tensor)
    assert (received.dtype, received.shape) == (tensor.dtype, tensor.shape)
    assert received.requires_grad == tensor.requires_grad
    assert received.is_leaf
    assert received.is_contiguous()
    assert received.data_ptr() % 64 == 0


def test_both_ends_may_send_before_either_receives(pair: Pair) -> None:
    large = torch.arange(1 << 20)
    for rank in (0, 1):
        pair[rank].send(1 - rank, "large", (large,))
    assert all(awaited(pair[rank], 1 - rank, "large")[0].equal(large) for rank in (0, 1))


def test_a_message_of_many_tensors_and_one_of_none_arrive_whole(pair: Pair) -> None:
    many = tuple(torch.full((1, 2, 3, i), i) for i in range(100))
    pair[0].send(1, "many", many)
    pair[0].send(1, "none", ())
    assert all(a.equal(b) for a, b in zip(awaited(pair[1], 0, "many"), many, strict=True))
    assert awaited(pair[1], 0, "none") == ()


def test_a_message_that_arrives_between_two_polls_ends_the_wait(pair: Pair) -> None:
    if isinstance(pair[1], MemoryLink):
        return  # driven, never waited for
    assert pair[1].poll(0, "first") is None
    pair[0].send(1, "first", (torch.tensor(1),))
    pair[0].send(1, "second", (torch.tensor(2),))
    while pair[1].poll(0, "second") is None:
        continue
    pair[1].wait()
    assert pair[1].poll(0, "first") is not None


def test_a_wait_ends_when_it_is_woken_from_another_thread(pair: Pair) -> None:
    """In memory nobody waits, so that there is nothing to wake."""
    one, _ = pair
    assert one.poll(1, "never") is None
    one.wake()
    if isinstance(one, MemoryLink):
        return
    one.wait()
    assert one.poll(1, "never") is None
    waiting = threading.Timer(0.05, one.wake)
    waiting.start()
    one.wait()
    waiting.join()


def test_a_rank_that_left_still_delivers_what_it_sent_and_then_counts_as_lost(pair: Pair) -> None:
    pair[0].send(1, "last", (torch.tensor(1),))
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(pair[0].close)
        assert int(awaited(pair[1], 0, "last")[0]) == 1
        with pytest.raises(PeerLost) as lost:
            awaited(pair[1], 0, "last")
        assert lost.value.rank == 0
        pair[1].close()
        closing.result()


FAULT = Fault(rank=0, cause=Cause.USER_ERROR, message="ValueError: boom", detail="Traceback ...")


def test_a_failed_rank_tells_its_peer_why_at_once_whatever_was_sent_before(pair: Pair) -> None:
    pair[0].send(1, "t", (torch.tensor(1),))
    with ThreadPoolExecutor(1) as pool:
        aborting = pool.submit(pair[0].abort, FAULT)
        if isinstance(pair[0], MemoryLink):
            aborting.result()  # driven, never waited for
        with pytest.raises(PeerFailed, match="rank 0 failed: ValueError: boom") as failed:
            awaited(pair[1], 0, "another")
        assert failed.value.fault == FAULT
        with pytest.raises(PeerFailed):
            pair[1].poll(0, "t")
        with pytest.raises(PeerFailed):
            pair[1].send(0, "t", ())
        pair[1].close()
        aborting.result()


def test_a_loss_that_a_peer_tells_of_is_the_loss_of_that_rank(pair: Pair) -> None:
    pair[0].send(1, "t", (torch.tensor(1),))
    with ThreadPoolExecutor(1) as pool:
        aborting = pool.submit(pair[0].abort, Fault(rank=7, cause=Cause.PEER_LOST, message="killed"))
        assert int(awaited(pair[1], 0, "t")[0]) == 1
        if isinstance(pair[0], MemoryLink):
            aborting.result()
        with pytest.raises(PeerLost, match="rank 7 is gone: killed"):
            awaited(pair[1], 0, "t")
        pair[1].abort(FAULT)  # too late: the first fault counts
        aborting.result()


def test_a_deep_message_may_wait_for_its_receiver_while_others_pass(pair: Pair) -> None:
    for value in range(4):
        pair[0].send(1, "bulk", (torch.full((1 << 20,), float(value)),))  # more than the kernel holds
    pair[1].send(0, "small", (torch.tensor(1),))
    assert int(awaited(pair[0], 1, "small")[0]) == 1
    assert [float(awaited(pair[1], 0, "bulk")[0][-1]) for _ in range(4)] == [0.0, 1.0, 2.0, 3.0]
