"""Faulty hosts: one that cuts connections within a response, one that answers nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from dataclasses import dataclass, field


@dataclass
class CuttingProxy:
    """A proxy that resets each connection (RST) after the server has sent ``after`` octets.

    ``times`` connections are cut, all later ones pass.
    """

    target: int
    after: int
    times: int = 1 << 30
    host: str = "127.0.0.1"
    port: int = 0
    cut: int = 0
    _server: asyncio.Server | None = field(default=None, repr=False)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._pass, self.host, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self.host, self.target)
        cutting = self.cut < self.times

        async def forward() -> None:
            while data := await reader.read(4096):
                back.write(data)

        task = asyncio.create_task(forward())
        left = self.after
        with contextlib.suppress(ConnectionError):
            while data := await there.read(4096):
                writer.write(data[:left] if cutting else data)
                await writer.drain()
                left -= len(data)
                if cutting and left <= 0:
                    self.cut += 1
                    sock = writer.get_extra_info("socket")
                    sock.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SOL_SOCKET, SO_LINGER
                    break
        task.cancel()
        back.close()
        writer.transport.abort() if cutting else writer.close()


@dataclass
class FixedAnswerServer:
    """A server that answers any input with the same octets."""

    answer: bytes
    host: str = "127.0.0.1"
    port: int = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._say, self.host, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        self._server.close()

    async def _say(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(4096):
                writer.write(self.answer)
                await writer.drain()
        writer.close()
