"""40 connections ask for 50 MiB again and again, by Fetch and by ShareFetch, and read 0, 1, 30,000, 100,000 or 500,000
bytes a second; meanwhile others ask for Metadata, and one client reads at 0.1 MB/s."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import time
import uuid
from datetime import timedelta

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from headrace.protocol.api_keys import ApiKey
from tests.hostile.attacked_agent import AttackedAgent, run_command
from tests.hostile.attacks import unread_replies
from tests.hostile.frames import METADATA, request
from tests.hostile.second_listener import exchange, waits
from tests.hostile.typed_frames import frame, part

SPEEDS = (0, 1, 30_000, 100_000, 500_000)
CONNECTIONS, SHARE_CONNECTIONS = 30, 10
SECONDS, STEP_SECONDS = 25.0, 0.5
HONEST_BYTES_PER_SECOND = 100_000
GROUP = "slow-readers"
_PROBE_SECONDS = 0.25
_SHARE_VERSION = 2


def share_fetch(member: str, topic_id: uuid.UUID) -> bytes:
    """Ask, as a member of a share group, for what is in partition 0."""
    of = ApiKey.SHARE_FETCH, _SHARE_VERSION
    partition = part(*of, "FetchPartition", partition_index=0, acknowledgement_batches=())
    topic = part(*of, "FetchTopic", topic_id=topic_id, partitions=(partition,))
    return frame(
        *of,
        group_id=GROUP, member_id=member, share_session_epoch=0, max_wait=timedelta(milliseconds=100), min_bytes=1,
        max_bytes=50 << 20, max_records=10_000, batch_size=10_000, share_acquire_mode=0, is_renew_ack=False,
        topics=(topic,), forgotten_topics_data=(),
    )  # fmt: skip


async def prepare(target: AttackedAgent) -> None:
    """Fill the topic, as ordinary clients do; the share group begins with its first record."""
    await unread_replies.prepare(target)
    earliest = ("configs", "set", "share.auto.offset.reset=earliest", "--group", GROUP, "-b", target.bootstrap)
    done = await asyncio.to_thread(run_command, sys.executable, *earliest)
    assert done.returncode == 0, done.stderr


def topic_id(target: AttackedAgent) -> uuid.UUID:
    """The id of the topic."""
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    (found,) = admin.describe_topics(TopicCollection([unread_replies.TOPIC])).values()
    given = found.result(30).topic_id
    return uuid.UUID(int=(given.get_most_significant_bits() % 2**64 << 64) | given.get_least_significant_bits() % 2**64)


class SlowReader:
    """A connection that asks, reads so many bytes a second, and connects again when it was closed."""

    def __init__(self, target: AttackedAgent, speed: int, of_group: uuid.UUID | None = None) -> None:
        """`of_group`: the topic's id, for a member of the share group; a new one for each connection."""
        self._target, self._speed, self._of_group = target, speed, of_group
        self.closed = self.read = 0

    async def run(self) -> None:
        """Attack until it is cancelled."""
        while True:
            with contextlib.suppress(OSError, EOFError):
                await self._one()
            self.closed += 1

    async def _one(self) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            connection.setblocking(False)
            await loop.sock_connect(connection, self._target.kafka)
            number = 0
            while True:
                number += 1
                await loop.sock_sendall(connection, self._question(number))
                (left,) = struct.unpack(">i", await self._receive(connection, 4))
                while left:
                    if not self._speed:
                        await asyncio.sleep(STEP_SECONDS)
                        if not await self._is_open(connection):
                            raise EOFError
                        continue
                    left -= len(await self._receive(connection, min(left, max(1, int(self._speed * STEP_SECONDS)))))
                    await asyncio.sleep(STEP_SECONDS)

    def _question(self, number: int) -> bytes:
        if self._of_group is None:
            return unread_replies.fetch(number)
        if number > 1:
            raise EOFError  # the session would need the answers
        return share_fetch(str(uuid.uuid4()), self._of_group)

    async def _receive(self, connection: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = await asyncio.get_running_loop().sock_recv(connection, min(65_536, size - len(data)))
            if not part:
                raise EOFError
            data += part
            self.read += len(part)
        return data

    async def _is_open(self, connection: socket.socket) -> bool:
        try:
            return connection.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True


async def _probe(target: AttackedAgent) -> list[float | None]:
    """Seconds that each request for Metadata takes; None: 10 seconds."""
    found: list[float | None] = []
    ask = request(METADATA, 1, struct.pack(">i", -1))
    reader, writer = await asyncio.open_connection(*target.kafka)
    over = time.monotonic() + SECONDS
    while time.monotonic() < over:
        began = time.monotonic()
        try:
            async with asyncio.timeout(10):
                await exchange(reader, writer, ask)
            found.append(time.monotonic() - began)
        except (OSError, EOFError, TimeoutError):
            found.append(None)
            reader, writer = await asyncio.open_connection(*target.kafka)
        await asyncio.sleep(_PROBE_SECONDS)
    writer.close()
    return found


async def attack(target: AttackedAgent) -> str:
    """All speeds at once, from one address, which is also that of the others."""
    asked = await asyncio.to_thread(topic_id, target)
    crew = [SlowReader(target, SPEEDS[number % len(SPEEDS)]) for number in range(CONNECTIONS)]
    crew += [SlowReader(target, SPEEDS[number % len(SPEEDS)], asked) for number in range(SHARE_CONNECTIONS)]
    honest = SlowReader(target, HONEST_BYTES_PER_SECOND)
    tasks = [asyncio.create_task(reader.run()) for reader in (*crew, honest)]
    try:
        probes = await _probe(target)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    kept = f"{honest.read / 1e6:.1f} MB read at {HONEST_BYTES_PER_SECOND / 1e6} MB/s, closed {honest.closed} times"
    return f"{sum(reader.closed for reader in crew)} slow readers closed; honest: {kept}; {waits(probes)}"
