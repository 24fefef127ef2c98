"""The call of the Client service that takes a bundle: clients need neither the store's name nor its keys."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from varuna_manager.rpc.refusals import refusals
from varuna_manager.rpc.submission import bundle_key
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.store import Store
from varuna_runtime.store.bundle import LIMIT_BYTES, keep
from varuna_runtime.wire.v1 import client_pb2

_AT_ONCE = 4  # archives on their way; each may need LIMIT_BYTES of this machine's disk
_SILENCE_S = 60.0

Chunks = AsyncIterator[client_pb2.BundleChunk]
Context = grpc.aio.ServicerContext[Any, Any]


class BundleCalls:
    """Archives wait on this machine's disk until they are whole and are what their name says."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._incoming = asyncio.Semaphore(_AT_ONCE)

    async def PutBundle(self, requests: Chunks, context: Context) -> client_pb2.PutBundleReply:  # noqa: N802
        """Keep a bundle; one that the store has already is not read."""
        async with refusals(context):
            first = await _next(requests)
            if first is None:
                raise InvalidInput("bundle: the stream carried no message; wanted its SHA-256")
            key = bundle_key(first.sha256)
            if not await asyncio.to_thread(self._store.exists, key):
                async with self._incoming:
                    await self._take(first, requests)
            return client_pb2.PutBundleReply()

    async def _take(self, first: client_pb2.BundleChunk, requests: Chunks) -> None:
        with tempfile.TemporaryDirectory(prefix="varuna-incoming-") as folder:
            archive, num_bytes = Path(folder) / "bundle.tar.gz", 0
            chunk: client_pb2.BundleChunk | None = first
            with archive.open("wb") as file:
                while chunk is not None:
                    num_bytes += len(chunk.data)
                    if num_bytes > LIMIT_BYTES:
                        raise InvalidInput(
                            f"bundle: seen more than {LIMIT_BYTES} bytes, wanted at most that many"
                        )
                    await asyncio.to_thread(file.write, chunk.data)
                    chunk = await _next(requests)
            await asyncio.to_thread(keep, self._store, first.sha256, archive)


async def _next(requests: Chunks) -> client_pb2.BundleChunk | None:
    """Return the next message, None at the end; InvalidInput for a client that fell silent."""
    try:
        async with asyncio.timeout(_SILENCE_S):
            return await anext(requests, None)
    except TimeoutError as err:
        raise InvalidInput(f"bundle: nothing came for {_SILENCE_S:g} s") from err
