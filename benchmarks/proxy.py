"""A TCP proxy that injects faults into its connections."""

import asyncio
import socket
import struct
from contextlib import suppress

from benchmarks.processes import free_port


class Proxy:
    """A proxy before a server; it only forwards until it is told to do otherwise.

    Attributes:
        url: its address.
        delay_s: the seconds by which everything that the server sends is delayed.
    """

    def __init__(self, target_port: int) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.delay_s = 0.0
        self._target = target_port
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._left: int | None = None  # bytes to pass back until a connection is closed
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Start to listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server:
            self._server.close()
        self.reset()
        await asyncio.gather(*self._clients)

    def reset(self) -> None:
        """Reset all open connections."""
        for client in self._clients.values():
            _break(client)

    def truncate(self, after: int) -> None:
        """Close a connection after `after` more bytes were sent back, over all connections."""
        self._left = after

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task, "asyncio starts each connection as a task"
        self._clients[task] = writer
        try:
            await self._connect(reader, writer)
        finally:
            del self._clients[task]

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            _break(writer)
            return
        forward_task = asyncio.create_task(self._pass_on(reader, far_writer))
        backward_task = asyncio.create_task(self._pass_back(far_reader, writer))
        try:
            await asyncio.wait([forward_task, backward_task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (forward_task, backward_task):
                task.cancel()
            await asyncio.wait([forward_task, backward_task])
            for end in (writer, far_writer):
                end.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()

    async def _pass_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if self._left is not None:
                    data, self._left = data[: self._left], self._left - len(data)
                    if self._left <= 0:
                        self._left = None
                        writer.write(data)
                        return
                writer.write(data)
                await writer.drain()


def _break(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a TCP reset instead of a FIN."""
    with suppress(OSError):
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()
