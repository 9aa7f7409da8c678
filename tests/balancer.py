"""A TCP load balancer in a thread: each new connection goes to the next backend that accepts one."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Sequence
from types import TracebackType

_CHUNK_BYTES = 64 * 1024


class Balancer:
    """Round robin over `backends` (host:port), which may be changed at any time. Its own address is `address`."""

    def __init__(self, backends: Sequence[str] = ()) -> None:
        self.backends = list(backends)
        self.header = b""
        """Sent to the backend first, such as one of the PROXY protocol."""
        self.connections: list[int] = []
        """Of each backend, by its index in `backends` at the time of the connection."""
        self._turn = itertools.count()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Balancer:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for _ in self.backends or [""]:
                number = next(self._turn) % len(self.backends)
                host, _, port = self.backends[number].rpartition(":")
                try:
                    there = await asyncio.open_connection(host, int(port))
                except OSError:
                    continue
                self.connections.append(number)
                there[1].write(self.header)
                await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))
                break
        finally:
            writer.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(_CHUNK_BYTES):
            sink.write(data)
            await sink.drain()
    except OSError:
        pass
    finally:
        sink.close()
