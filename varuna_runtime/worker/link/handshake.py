"""How two ranks prove to each other that they hold their generation's secret; does no I/O.

A challenge in both directions, so that a replayed connection proves nothing. What follows is not encrypted.
"""

import hmac
import struct
from collections.abc import Collection, Generator
from dataclasses import dataclass, field

from varuna_runtime.spec.errors import VarunaError

NONCE_BYTES = MAC_BYTES = 32
_MAGIC = b"varuna/1"
_HELLO = struct.Struct(f"<8sQII{NONCE_BYTES}s")  # magic, generation, source, target, nonce
HELLO_BYTES = _HELLO.size
ANSWER_BYTES = NONCE_BYTES + MAC_BYTES


class Refused(VarunaError):
    """The other end is no peer of this generation; drop the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this end is."""

    job: str
    generation: int
    rank: int
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Turn:
    """Send this, then read exactly so many bytes."""

    send: bytes
    wanted: int


Handshake = Generator[Turn, bytes, int]  # returns the peer's rank; raises Refused


def offer(me: Identity, peer: int, nonce: bytes) -> Handshake:
    """The side that connects to `peer`; `nonce` was never used before."""
    hello = _HELLO.pack(_MAGIC, me.generation, me.rank, peer, nonce)
    answer = yield Turn(hello, ANSWER_BYTES)
    challenge, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(me, b"accept", hello, challenge)):
        raise Refused(f"what listens for rank {peer} does not know this generation's secret")
    yield Turn(_proof(me, b"offer", hello, challenge), 0)
    return peer


def accept(me: Identity, expected: Collection[int], nonce: bytes) -> Handshake:
    """The side that listens; only ranks in `expected` at that time are let in."""
    hello = yield Turn(b"", HELLO_BYTES)
    magic, generation, source, target, _ = _HELLO.unpack(hello)
    if magic != _MAGIC:
        raise Refused("a connection that does not speak this protocol")
    if generation != me.generation or target != me.rank or source not in expected:
        raise Refused(f"a connection from rank {source} of generation {generation} to rank {target}")
    proof = yield Turn(nonce + _proof(me, b"accept", hello, nonce), MAC_BYTES)
    if not hmac.compare_digest(proof, _proof(me, b"offer", hello, nonce)):
        raise Refused(f"a connection in the name of rank {source} without this generation's secret")
    return int(source)


def _proof(me: Identity, side: bytes, hello: bytes, challenge: bytes) -> bytes:
    text = b"\0".join((side, me.job.encode(), hello, challenge))
    return hmac.digest(me.secret.encode(), text, "sha256")
