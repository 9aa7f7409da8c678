"""Captures requests of real clients for vectors/client_requests.tsv, by a proxy in front of an agent.

`python -m tests.protocol.capture_requests LABEL PORT HOST:PORT KEY[,KEY…]` listens on 127.0.0.1:PORT, passes everything
on to HOST:PORT, and prints a row of the file for each request with one of these API keys; no two with the same bytes.
The agent has to advertise 127.0.0.1:PORT. It ends with SIGINT.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from contextlib import suppress

from headrace.protocol.api_keys import ApiKey

SIZE = struct.Struct(">i")
HEAD = struct.Struct(">hh")


class Recorder:
    """All connections of one run."""

    def __init__(self, label: str, target: tuple[str, int], keys: frozenset[int]) -> None:
        self._label, self._target, self._keys = label, target, keys
        self._seen: set[bytes] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on, both ways."""
        answers, requests = await asyncio.open_connection(*self._target)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await asyncio.gather(self._requests(reader, requests), _copy(answers, writer))
        requests.close()
        writer.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            size = await reader.readexactly(SIZE.size)
            frame = await reader.readexactly(*SIZE.unpack(size))
            self._note(frame)
            writer.write(size + frame)
            await writer.drain()

    def _note(self, frame: bytes) -> None:
        api_key, version = HEAD.unpack_from(frame)
        without_correlation_id = frame[:4] + frame[8:]
        if api_key in self._keys and without_correlation_id not in self._seen:
            self._seen.add(without_correlation_id)
            print(self._label, api_key, ApiKey(api_key).name, version, frame.hex(), sep="\t", flush=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    raise ConnectionResetError


async def _run(label: str, port: int, target: str, keys: str) -> None:
    host, _, target_port = target.rpartition(":")
    recorder = Recorder(label, (host, int(target_port)), frozenset(map(int, keys.split(","))))
    server = await asyncio.start_server(recorder.serve, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_run(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]))
