"""The floods: what is slow, missing or too much, for how long.

Place: run.py runs one of them around a cluster with ordinary clients.
Invariant: when a script returns, its cause is gone. It returns what the flood itself saw, a line each; nothing is
done to the agents.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import psycopg
from kio.schema.errors import ErrorCode

from headrace.cli.bench.orders import percentile
from tests.hostile.frames import request
from tests.torture.cluster import TortureCluster

FLOOD_SECONDS = 20.0
LOAD_SECONDS = 30.0
"""Seconds of the load around a fault: it begins with it, and continues after it."""
LOAD_TOPIC = "flood"
CONNECTIONS = 10_500
"""More than max.connections."""
PRODUCERS = 1_000
_API_VERSIONS = 18
OPENING_AT_ONCE = 200


async def slow_bucket(cluster: TortureCluster) -> list[str]:
    """The bucket takes up to 0.4 s more for each piece of a request or answer"""
    return await _with_load(cluster, "delay")


async def failing_bucket(cluster: TortureCluster) -> list[str]:
    """The bucket answers every request with 503 SlowDown"""
    return await _with_load(cluster, "slow_down")


async def exhausted_pool(cluster: TortureCluster) -> list[str]:
    """Other programs have all connections of Postgres; those of the agents are ended"""
    load = asyncio.create_task(_raw_load(cluster))
    taken = await asyncio.to_thread(_take_connections, cluster.drills.url)
    until = time.monotonic() + FLOOD_SECONDS
    while time.monotonic() < until:
        taken += await asyncio.to_thread(_take_connections, cluster.drills.url, taken[0])
        await asyncio.sleep(0.2)
    for connection in taken:
        connection.close()
    return [f"other programs had {len(taken)} connections of Postgres", *await load]


async def connections(cluster: TortureCluster) -> list[str]:
    """One machine opens 10,500 connections to one agent and keeps them"""
    port = cluster.agents["agent-0"].proxy.target
    counts: Counter[str] = Counter()
    writers: list[asyncio.StreamWriter] = []
    turns = asyncio.Semaphore(OPENING_AT_ONCE)

    async def open_one() -> None:
        async with turns:
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(30):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writers.append(writer)
                    writer.write(request(_API_VERSIONS, 0, b""))
                    size = int.from_bytes(await reader.readexactly(4), "big")
                    await reader.readexactly(size)
                    counts["answered"] += 1
                    return
            counts["closed or not answered"] += 1

    began = time.monotonic()
    await asyncio.gather(*(open_one() for _ in range(CONNECTIONS)))
    took = time.monotonic() - began
    await asyncio.sleep(FLOOD_SECONDS / 2)
    for writer in writers:
        writer.close()
    answers = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    return [f"{CONNECTIONS} connections in {took:.1f} s, each with one request: {answers}"]


async def producers(cluster: TortureCluster) -> list[str]:
    """1,000 producers begin in the same second, each sends a record per second"""
    words = ("--producers", PRODUCERS, "--rate", PRODUCERS, "--seconds", FLOOD_SECONDS, "--partitions", 1)
    return await _program(cluster, "load.workloads.producer", words)


async def _with_load(cluster: TortureCluster, fault: str) -> list[str]:
    (proxy,) = cluster.proxies["s3"]
    load = asyncio.create_task(_raw_load(cluster))
    await proxy.strike(fault, FLOOD_SECONDS)
    return await load


async def _raw_load(cluster: TortureCluster) -> list[str]:
    """16 connections with five requests of 64 KiB in flight each, as fast as answers allow."""
    words = ("--connections", 16, "--seconds", LOAD_SECONDS, "--partitions", 6)
    return await _program(cluster, "load.workloads.raw_producer", words)


async def _program(cluster: TortureCluster, module: str, words: Sequence[object]) -> list[str]:
    port = cluster.agents["agent-0"].proxy.target
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, "--port", str(port), "--topic", LOAD_TOPIC, *map(str, words),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    printed, problem = await process.communicate()
    if not printed:
        return [f"load: {problem.decode().strip().splitlines()[-1]}"]
    seen = json.loads(printed)
    errors = {ErrorCode(int(code)).name: count for code, count in seen["errors"].items() if int(code)}
    refused = ", ".join(f"{name} {count}" for name, count in sorted(errors.items())) or "none"
    waited = seen["latencies"] or [0.0]
    times = ", ".join(f"p{p} {percentile(waited, p):.2f} s" for p in (50, 99))
    return [f"load: {seen['requests']} requests answered, {times}, longest {max(waited):.2f} s; errors: {refused}"]


def _take_connections(url: str, first: psycopg.Connection | None = None) -> list[psycopg.Connection]:
    """All that are free, and those of the agents, which are ended."""
    taken: list[psycopg.Connection] = []
    for _ in range(3):
        with suppress(psycopg.OperationalError):
            while True:
                taken.append(psycopg.connect(url, autocommit=True, application_name="others"))
        asking = first or taken[0]
        asking.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'headrace%'")
    return taken


FLOODS = {flood.__name__: flood for flood in (slow_bucket, failing_bucket, exhausted_pool, connections, producers)}
