"""A Unix socket in kubelet's place that does not speak as it should."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path


@contextlib.asynccontextmanager
async def rogue(socket: Path, says: bytes | None = None) -> AsyncIterator[Sequence[object]]:
    """Say the same to all that connect and end the connection, or say nothing and keep it.

    Yields the connections up to now.
    """
    writers: list[asyncio.StreamWriter] = []

    def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if says is not None:
            writer.write(says)
            writer.close()

    async with await asyncio.start_unix_server(serve, socket):
        yield writers
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
