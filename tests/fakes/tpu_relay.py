"""A TCP relay before the fake's gRPC server: it can reset a client's connection, which grpcio's
server cannot."""

import asyncio
import socket
import struct
import threading
from contextlib import suppress


class Relay:
    """Listens on a free port of 127.0.0.1 and passes every connection on to `target`, in a thread
    of its own, until the process ends."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._clients: dict[int, asyncio.StreamWriter] = {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        starting = asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
        self.port: int = server.sockets[0].getsockname()[1]

    def reset(self, peer: str) -> None:
        """End with a RST the connection that the server knows as `peer`, e.g.
        `ipv4:127.0.0.1:40000`. Returns when that has happened."""
        ending = self._reset(int(peer.rsplit(":", 1)[1]))
        asyncio.run_coroutine_threadsafe(ending, self._loop).result()

    async def _reset(self, port: int) -> None:
        if port in self._clients:
            transport = self._clients.pop(port).transport
            raw = transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
        port = server_writer.get_extra_info("sockname")[1]
        self._clients[port] = writer
        ends = ((reader, server_writer), (server_reader, writer))
        ways = [asyncio.create_task(_copy(*end)) for end in ends]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        self._clients.pop(port, None)
        for end in (writer, server_writer):
            end.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
