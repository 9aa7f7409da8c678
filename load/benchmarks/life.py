"""What the life of the metastore costs: `python -m load life [--partitions N]`.

Starts a Postgres (fsync on), and prints
    assert_life   server time of the check that every writing call makes, per call, in a loop of one transaction each
                  way: with it and with an empty function instead; the difference is the check
    begin         how long a new life takes to begin, on a topic table of N partitions: until then nothing is written
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
import uuid

import psycopg

from headrace.config.settings import Settings
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.objects.memory import MemoryStore
from load.harness import Benchmark, BenchmarkRun

CALLS = 50_000
PER_TOPIC = 1_000
NOTHING = """
CREATE FUNCTION nothing(p_life int) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$ BEGIN RETURN true; END $$
"""


def microseconds_per_call(url: str, function: str) -> float:
    """Server time of CALLS calls in one statement, by the client's clock."""
    with psycopg.connect(url, autocommit=True) as connection:
        query = f"SELECT count(*) FROM generate_series(1, {CALLS}) AS n WHERE {function}(n * 0)".encode()
        connection.execute(query)
        began = time.perf_counter()
        connection.execute(query)
        return (time.perf_counter() - began) / CALLS * 1e6


async def begin_seconds(url: str, partitions: int) -> float:
    """A new life on that many partitions."""
    metastore = await PostgresMetastore.open(url, Settings(metastore_pool_size=2))
    try:
        for number in range(max(partitions // PER_TOPIC, 1)):
            topic = NewTopic(f"t{number}", uuid.uuid4(), min(PER_TOPIC, partitions), {})
            assert await metastore.topics.create_topics(await metastore.cluster.metadata_head(), [topic])
        keeper = LifeKeeper(metastore.life, MemoryStore(SystemClock()), SystemClock(), random.Random(1))
        await keeper.check()
        began = time.perf_counter()
        await keeper.begin_anew("measured")
        return time.perf_counter() - began
    finally:
        await metastore.close()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--partitions", type=int, default=4_000)


def benchmark(run: BenchmarkRun) -> None:
    partitions = run.args.partitions
    with run.postgres() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(NOTHING)
        check, empty = (microseconds_per_call(url, name) for name in ("assert_life", "nothing"))
        run.row("assert_life", {"us a call": check - empty, "us in all": check, "us of an empty function": empty})
        run.row("begin", {"s": asyncio.run(begin_seconds(url, partitions)), "partitions": partitions})


BENCHMARK = Benchmark(
    "the metastore's life: its check, and how long a new one takes to begin", benchmark, add_arguments
)
