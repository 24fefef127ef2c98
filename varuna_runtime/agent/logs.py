"""Carries the ranks' log files to the manager by offset, on a call of its own, in bounded pieces."""

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from varuna_runtime.agent.link import Dial
from varuna_runtime.wire.v1 import agent_pb2, agent_pb2_grpc

LAUNCHER_RANK = -1
_PIECE_BYTES = 64 << 10
_ROUND_BYTES = 1 << 20
_EVERY_S = 0.3
_CALL_S = 10.0


@dataclass(slots=True, kw_only=True)
class _File:
    path: Path
    job: str
    generation: int
    rank: int
    sent: int = 0  # bytes the manager has acknowledged


class LogCarrier:
    """A round sends at most a megabyte and counts only once the manager answered; so nothing is lost."""

    def __init__(self, node: str, dial: Dial, folder: Path) -> None:
        self._node = node
        self._dial = dial
        self._folder = folder
        self._files: dict[Path, _File] = {}

    def path(self, job: str, generation: int, rank: int) -> Path:
        """Return the log file of a rank, registered and its folder made."""
        name = "launcher" if rank == LAUNCHER_RANK else f"r{rank}"
        path = self._folder / job / f"g{generation}-{name}.log"
        if path not in self._files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            self._files[path] = _File(path=path, job=job, generation=generation, rank=rank)
        return path

    async def run(self) -> None:
        """Carry for ever; a failed round is repeated later."""
        while True:
            try:
                await self.carry()
            except (grpc.aio.AioRpcError, TimeoutError):
                await asyncio.sleep(_EVERY_S)
            await asyncio.sleep(_EVERY_S)

    async def carry(self) -> None:
        """Send what is new; raises when the manager does not take it."""
        while await self._round():
            pass

    async def forget(self, job: str) -> None:
        """Remove the job's log files; what is not carried by then is lost here."""
        for path in [path for path, file in self._files.items() if file.job == job]:
            del self._files[path]
        await asyncio.to_thread(shutil.rmtree, self._folder / job, ignore_errors=True)

    async def _round(self) -> bool:
        """Return whether there may be more."""
        chunks = list(self._new_chunks())
        if not chunks:
            return False
        async with asyncio.timeout(_CALL_S):
            async with self._dial() as channel:
                stub = agent_pb2_grpc.AgentLinkStub(channel)  # type: ignore[no-untyped-call]
                await stub.PushLogs(iter(chunks))
        for chunk in chunks:
            for file in self._files.values():
                if (file.job, file.generation, file.rank) == (chunk.job, chunk.generation, chunk.rank):
                    file.sent = chunk.offset + len(chunk.data)
        return sum(len(chunk.data) for chunk in chunks) >= _ROUND_BYTES

    def _new_chunks(self) -> Iterator[agent_pb2.LogChunk]:
        left = _ROUND_BYTES
        for file in list(self._files.values()):
            offset = file.sent
            while left > 0 and (data := _read(file.path, offset, min(_PIECE_BYTES, left))):
                yield agent_pb2.LogChunk(
                    node=self._node,
                    job=file.job,
                    generation=file.generation,
                    rank=file.rank,
                    offset=offset,
                    data=data,
                )
                offset += len(data)
                left -= len(data)


def _read(path: Path, offset: int, num_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(num_bytes)
    except FileNotFoundError:
        return b""
