"""The path between two agents of a zone alters the answers of the zone cache, or claims 128 MiB and sends 2 bytes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.agent.peers.channel import ZONE_CACHE_KEY
from tests.hostile.attacked_agent import AttackedAgent

SETTINGS = {"broker.rack": "zone-a", "cache.bytes": 0}
"""Settings with which the agent does not have in memory what it wrote a moment ago, and asks the other agent of its
zone.
"""
_TOPIC, _PARTITIONS, _RECORDS, _RECORD_BYTES = "zoned", 16, 4_000, 1_000
_CLAIM = struct.pack(">i", 128 * 1024 * 1024) + b"\0\0"
_SECONDS_MAX = 60.0


class AlteringPath:
    """A proxy before an agent: it alters what answers a call of the zone cache, and nothing else."""

    def __init__(self) -> None:
        self.agent = ("", 0)
        self.answers = 0
        """Altered so far."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            agent_reader, agent_writer = await asyncio.open_connection(*self.agent)
            first = await reader.readexactly(6)
            (api_key,) = struct.unpack_from(">h", first, 4)
            agent_writer.write(first)
            back = self._altered if api_key == ZONE_CACHE_KEY else _pipe
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_pipe(reader, agent_writer))
                    both.create_task(back(agent_reader, writer))
            except* (OSError, asyncio.IncompleteReadError):
                pass
        writer.close()

    async def _altered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A bit of each answer is flipped: near its end, where records are, or near its start; each third becomes a
        claim of 128 MiB."""
        while True:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            answer = bytearray(await reader.readexactly(size))
            self.answers += 1
            if self.answers % 3 == 0:
                writer.write(_CLAIM)
            else:
                answer[-20 if self.answers % 3 == 1 else 10] ^= 1
                writer.write(struct.pack(">i", size) + answer)
            await writer.drain()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def attack(target: AttackedAgent) -> str:
    """A second agent joins, reachable through the altering path only; then a topic is written and read."""
    path = AlteringPath()
    server = await asyncio.start_server(path, "127.0.0.1", 0)
    async with server, _neighbour(target, path, server.sockets[0].getsockname()[1]):
        read, wrong = await asyncio.to_thread(_write_and_read, target.bootstrap)
    return f"{path.answers} answers altered; {read} of {_RECORDS} records read, {wrong} of them wrong"


@contextlib.asynccontextmanager
async def _neighbour(target: AttackedAgent, path: AlteringPath, port: int) -> AsyncIterator[None]:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        path.agent = unused.getsockname()
    flags = {
        "--broker-rack": "zone-a",
        "--listeners": f"PLAINTEXT://127.0.0.1:{path.agent[1]}",
        "--advertised-listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "--http-port": "0", "--log-level": "warning",
    }  # fmt: skip
    words = [word for flag in flags.items() for word in flag]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "headrace.cli.main",
        "agent",
        *target.storage_flags,
        *words,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        if not await process.stdout.readline():
            raise RuntimeError("the second agent ended before it was ready")
        yield
    finally:
        process.terminate()
        await process.wait()


def _write_and_read(bootstrap: str) -> tuple[int, int]:
    """(records read, how many of them are not what was written)."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(_TOPIC, _PARTITIONS)])[_TOPIC].result(_SECONDS_MAX)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "zoned", "fetch.wait.max.ms": 50})
    consumer.assign([TopicPartition(_TOPIC, partition, 0) for partition in range(_PARTITIONS)])
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    sent: dict[bytes, bytes] = {}
    wrong = read = 0
    for number in range(_RECORDS):
        key, value = str(number).encode(), os.urandom(_RECORD_BYTES)
        sent[key] = value
        producer.produce(_TOPIC, value, key)
        producer.poll(0)
        if number % 100 == 99:
            producer.flush(_SECONDS_MAX)
            for message in consumer.consume(100, _SECONDS_MAX):
                if message.error() is None:
                    read += 1
                    wrong += sent.pop(message.key() or b"", None) != message.value()
    consumer.close()
    return read, wrong
