import pytest

from varuna_runtime.worker.link.handshake import Handshake, Identity, Refused, Turn, accept, offer

NONCES = bytes(range(32)), bytes(range(32, 64))


def rank(number: int, *, secret: str = "secret", job: str = "job", generation: int = 3) -> Identity:
    return Identity(job=job, generation=generation, rank=number, secret=secret)


def start(handshake: Handshake) -> Turn:
    return next(handshake)


def ended(handshake: Handshake, received: bytes) -> int:
    with pytest.raises(StopIteration) as end:
        handshake.send(received)
    result: int = end.value.value
    return result


def test_two_ranks_of_a_generation_prove_themselves_to_each_other() -> None:
    calling, called = offer(rank(1), 2, NONCES[0]), accept(rank(2), {0, 1}, NONCES[1])
    start(called)
    answer = called.send(start(calling).send)
    proof = calling.send(answer.send)
    assert proof.wanted == 0
    assert (ended(called, proof.send), ended(calling, b"")) == (1, 2)


@pytest.mark.parametrize(
    "stranger", [rank(1, secret="other"), rank(1, job="other")], ids=["another secret", "another job"]
)
def test_neither_side_takes_one_without_the_secret_of_the_job(stranger: Identity) -> None:
    calling, called = offer(stranger, 2, NONCES[0]), accept(rank(2), {1}, NONCES[1])
    start(called)
    answer = called.send(start(calling).send)
    with pytest.raises(Refused, match="listens for rank 2 does not know"):
        calling.send(answer.send)
    with pytest.raises(Refused, match="in the name of rank 1 without"):
        called.send(bytes(32))


@pytest.mark.parametrize(
    ("caller", "target"),
    [(rank(1, generation=2), 2), (rank(1), 3), (rank(5), 2)],
    ids=["stale", "to another rank", "not expected"],
)
def test_a_caller_that_does_not_belong_here_is_refused_at_its_first_word(
    caller: Identity, target: int
) -> None:
    called = accept(rank(2), {0, 1}, NONCES[1])
    start(called)
    with pytest.raises(Refused, match="a connection from rank"):
        called.send(start(offer(caller, target, NONCES[0])).send)


def test_what_speaks_another_protocol_is_refused() -> None:
    called = accept(rank(2), {1}, NONCES[1])
    wanted = start(called).wanted
    with pytest.raises(Refused, match="does not speak"):
        called.send(b"GET / HTTP/1.1\r\n".ljust(wanted, b" "))


def test_a_recorded_connection_proves_nothing_later() -> None:
    calling, called = offer(rank(1), 2, NONCES[0]), accept(rank(2), {1}, NONCES[1])
    start(called)
    hello = start(calling).send
    proof = calling.send(called.send(hello).send).send
    later = accept(rank(2), {1}, bytes(32))
    start(later)
    later.send(hello)
    with pytest.raises(Refused, match="in the name of rank 1 without"):
        later.send(proof)


def test_a_proof_cannot_be_turned_around() -> None:
    """Whoever answers with our own words, as a mirror does, knows no secret."""
    calling, mirror = offer(rank(1), 2, NONCES[0]), accept(rank(2), {1}, NONCES[1])
    start(mirror)
    answer = mirror.send(start(calling).send).send
    with pytest.raises(Refused):
        mirror.send(answer[32:])
