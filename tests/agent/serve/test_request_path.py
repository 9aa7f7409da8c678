"""How far one request travels through the code: calls, and changes from file to file (docs/decisions/0108).

An agent runs in this process, on real Postgres with a bucket in memory; a real client sends one record, and one Fetch
request is sent by hand, because a client sends as many as it likes. What the agent also does while it is idle is left
out.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import sys
import types
import uuid
from collections.abc import Callable
from pathlib import Path

import confluent_kafka

import headrace
from headrace.cli.process.open_process import compose_agent
from headrace.config.settings import Settings
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.objects.memory import MemoryStore
from load.contexts import a_context

TOPIC = "one"
HEADRACE = str(Path(headrace.__file__).parent)
CALLS_MAX, CHANGES_MAX = {"produce": 350, "fetch": 285}, {"produce": 205, "fetch": 135}
"""A tenth above what was counted: a request that takes more is to be looked at."""

TRIES = 4
"""The shortest counts: background work may come between."""
Call = tuple[str, str]
"""File and function."""


class Counted:
    """The calls of Headrace's own functions while the block runs, in order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __enter__(self) -> Counted:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *failure: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: types.FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HEADRACE):
            self.calls.append((frame.f_code.co_filename, frame.f_code.co_qualname))


async def _path_of(request: Callable[[], object] | None) -> list[Call]:
    """Return the calls of this request, and of what follows at once."""
    await asyncio.sleep(0.3)
    with Counted() as counted:
        await (asyncio.sleep(0.2) if request is None else asyncio.to_thread(request))
        await asyncio.sleep(0.03)
    return counted.calls


def _fetch_request() -> bytes:
    """Return a Fetch request of version 4 for the first partition."""
    asked = struct.pack(">iqi", 0, 0, 1 << 20)
    topics = struct.pack(">ih", 1, len(TOPIC)) + TOPIC.encode() + struct.pack(">i", 1) + asked
    body = struct.pack(">hhihiiiib", 1, 4, 7, -1, -1, 0, 1, 1 << 20, 0) + topics
    return struct.pack(">i", len(body)) + body


async def test_one_request_travels_through_few_functions(metastore_url: str) -> None:
    settings = Settings(listeners="PLAINTEXT://127.0.0.1:0", http_port=0, metastore_url=metastore_url)
    metastore, clock = await PostgresMetastore.open(metastore_url, settings), SystemClock()
    head = await metastore.cluster.metadata_head()
    await metastore.topics.create_topics(head, [NewTopic(TOPIC, uuid.uuid4(), 1, {})])
    process, broker = compose_agent(a_context(metastore, clock, store=MemoryStore(clock), settings=settings))
    await process.start()
    address = {"bootstrap.servers": f"127.0.0.1:{broker.kafka_port}"}
    producer = confluent_kafka.Producer({**address, "enable.idempotence": True, "linger.ms": 0})
    connection = socket.create_connection(("127.0.0.1", broker.kafka_port))

    def produce() -> None:
        producer.produce(TOPIC, b"value")
        producer.flush()

    def fetch() -> None:
        connection.sendall(_fetch_request())
        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        assert b"value" in connection.recv(size, socket.MSG_WAITALL)

    try:
        for _ in range(4):
            await asyncio.to_thread(produce)
        idle = {call for _ in range(2) for call in await _path_of(None)}
        paths: dict[str, list[list[Call]]] = {"produce": [], "fetch": []}
        for _ in range(TRIES):
            paths["produce"].append(await _path_of(produce))
            paths["fetch"].append(await _path_of(fetch))
    finally:
        connection.close()
        await process.stop()
    for name, tries in paths.items():
        own = min(([call for call in calls if call not in idle] for calls in tries), key=len)
        changes = sum(before[0] != after[0] for before, after in itertools.pairwise(own))
        print(f"{name}: calls={len(own)} changes={changes} files={len({file for file, _ in own})}")
        assert 100 < len(own) <= CALLS_MAX[name], name
        assert changes <= CHANGES_MAX[name], name
