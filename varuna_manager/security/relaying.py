"""Carries the bytes of one connection, and bounds what a stranger may send before it has proved itself."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress

PIECE_BYTES = 64 << 10


class Trial:
    """What a stranger may send until it has proved itself: a little, and not for long.

    A server collects a call's whole message before the call can be judged by it, for as many calls as there
    are on a connection.
    """

    def __init__(self, *, most_bytes: int, within_s: float) -> None:
        self._left_bytes = most_bytes
        self._within_s = within_s
        self._is_over = asyncio.Event()
        self._is_stopped = asyncio.Event()

    def end(self) -> None:
        """It has proved itself."""
        self._is_over.set()

    def stop(self) -> None:
        """It is to go, whatever it has proved."""
        self._is_over.set()
        self._is_stopped.set()

    async def time(self) -> None:
        """Wait until its time is over; once it has proved itself, until it is to go."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._within_s):
                await self._is_over.wait()
            await self._is_stopped.wait()

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what comes; what is too much waits."""
        while not self._is_over.is_set():
            if not self._left_bytes:
                await self._is_over.wait()
            elif piece := await reader.read(min(PIECE_BYTES, self._left_bytes)):
                self._left_bytes -= len(piece)
                writer.write(piece)
                await writer.drain()
            else:
                return
        await pump(reader, writer)


async def until_first_ends(*pumps: Coroutine[None, None, None]) -> None:
    """Run them side by side until one is over, and end the others."""
    running = [asyncio.ensure_future(pump) for pump in pumps]
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes, no faster than it is taken."""
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
