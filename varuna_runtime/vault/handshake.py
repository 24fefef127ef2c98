"""How two ends prove to each other that they hold a job's secret of copies; does no I/O.

A challenge in both directions, so that a replayed connection proves nothing. What follows is not encrypted.
"""

import hmac
import struct

NONCE_BYTES = MAC_BYTES = 32
MOST_JOB_BYTES = 256
_MAGIC = b"vault/1\n"
_HELLO = struct.Struct(f">8sH{NONCE_BYTES}s")  # magic, bytes of the job's name, nonce; the name follows
HELLO_BYTES = _HELLO.size
ANSWER_BYTES = NONCE_BYTES + MAC_BYTES


def hello(job: str, nonce: bytes) -> bytes:
    """Return what the side that calls says first; `nonce` was never used before."""
    name = job.encode()
    return _HELLO.pack(_MAGIC, len(name), nonce) + name


def name_bytes(start: bytes) -> int | None:
    """Return how many bytes of the job's name follow; None: it does not speak this protocol."""
    magic, length, _ = _HELLO.unpack(start)
    return int(length) if magic == _MAGIC and 0 < length <= MOST_JOB_BYTES else None


def job_of(said: bytes) -> str | None:
    """Return the job that a whole hello names; None if that is no text."""
    try:
        return said[HELLO_BYTES:].decode()
    except UnicodeDecodeError:
        return None


def answer(secret: str, said: bytes, nonce: bytes) -> bytes:
    """Return what the side that listens says to a hello: its own challenge, and its proof."""
    return nonce + _proof(secret, b"accept", said, nonce)


def is_answer(secret: str, said: bytes, heard: bytes) -> bool:
    """Return whether the side that listens holds the secret."""
    nonce, proof = heard[:NONCE_BYTES], heard[NONCE_BYTES:]
    return hmac.compare_digest(proof, _proof(secret, b"accept", said, nonce))


def proof(secret: str, said: bytes, nonce: bytes) -> bytes:
    """Return what the side that calls proves itself with."""
    return _proof(secret, b"offer", said, nonce)


def is_proof(secret: str, said: bytes, nonce: bytes, heard: bytes) -> bool:
    """Return whether the side that calls holds the secret."""
    return hmac.compare_digest(heard, proof(secret, said, nonce))


def _proof(secret: str, side: bytes, said: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret.encode(), b"\0".join((side, said, nonce)), "sha256")
