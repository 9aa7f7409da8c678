"""Apache Kafka for tests: what holds for it and for Headrace is Kafka's behaviour.

Place: tests that run the same check against both.
Invariant: leaving the context ends the server.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from headrace.cli.bench.kafka_target import open_kafka
from headrace.cli.bench.targets import TargetSpec
from tests.tools import KAFKA_JARS


@contextmanager
def kafka_server(folder: Path, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """The bootstrap address of one node with these settings, on an event loop in a thread."""
    started: list[str] = []
    ready, ended = threading.Event(), asyncio.Event()
    loop, spec = asyncio.new_event_loop(), TargetSpec("kafka", "kafka", settings=dict(settings))

    async def serve() -> None:
        try:
            async with open_kafka(spec, folder, KAFKA_JARS) as target:
                started.append(target.bootstrap)
                ready.set()
                await ended.wait()
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    ready.wait()
    assert started, "Apache Kafka did not start"
    try:
        yield started[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
