"""What a manager takes as a bundle, and what it sends back."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from varuna_manager.rpc import bundles
from varuna_manager.rpc.bundles import BundleCalls
from varuna_runtime.store import Store, open_store
from varuna_runtime.store.bundle import bundle_key, packed
from varuna_runtime.wire.v1.client_pb2 import BundleChunk


class Refused(Exception):
    """What a client would see."""


class Context:
    async def abort(self, code: grpc.StatusCode, message: str) -> None:
        raise Refused(f"{code.name}: {message}")


async def sent(store: Store, *chunks: BundleChunk) -> int:
    """Send the chunks and return how many of them were read."""
    num_read = 0

    async def stream() -> AsyncIterator[BundleChunk]:
        nonlocal num_read
        for chunk in chunks:
            num_read += 1
            yield chunk

    context: Any = Context()
    await BundleCalls(store).PutBundle(stream(), context)
    return num_read


def send(store: Store, *chunks: BundleChunk) -> int:
    return asyncio.run(sent(store, *chunks))


def archive_of(folder: Path) -> tuple[str, bytes]:
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    with packed(folder) as (bundle, path):
        return bundle.sha256, path.read_bytes()


def test_a_bundle_in_pieces_arrives_whole_and_is_not_read_a_second_time(tmp_path: Path) -> None:
    store = open_store("memory://")
    sha256, data = archive_of(tmp_path / "work")
    pieces = [BundleChunk(data=data[i : i + 50]) for i in range(0, len(data), 50)]
    assert send(store, BundleChunk(sha256=sha256), *pieces) == len(pieces) + 1
    assert store.get(bundle_key(sha256)) == data
    assert send(store, BundleChunk(sha256=sha256), *pieces) == 1


@pytest.mark.parametrize("cut", [0, 10])
def test_a_bundle_that_is_not_what_its_name_says_is_refused_and_not_kept(tmp_path: Path, cut: int) -> None:
    store = open_store("memory://")
    sha256, data = archive_of(tmp_path / "work")
    with pytest.raises(Refused, match=r"INVALID_ARGUMENT.*has SHA-256"):
        send(store, BundleChunk(sha256=sha256), BundleChunk(data=data[:cut]))
    assert not store.exists(bundle_key(sha256))


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64])
def test_a_name_that_is_no_hash_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="wanted a SHA-256 in hex"):
        send(open_store("memory://"), BundleChunk(sha256=name, data=b"x"))


def test_an_empty_stream_is_refused() -> None:
    with pytest.raises(Refused, match="no message"):
        send(open_store("memory://"))


def test_more_than_a_bundle_may_hold_is_refused_before_it_is_all_read() -> None:
    piece = BundleChunk(sha256="0" * 64, data=bytes(bundles.LIMIT_BYTES // 4 + 1))
    with pytest.raises(Refused, match="wanted at most"):
        send(open_store("memory://"), *[piece] * 9)
