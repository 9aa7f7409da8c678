"""What commits cost while another session holds an old snapshot, as pg_dump or a forgotten BEGIN does.

`python -m load.reproductions.held_snapshot`: commits of one batch for each partition, each batch of an idempotent
producer, first without a held snapshot and then with one. Postgres CPU is that of the committing backend, from
/proc/<pid>/schedstat; "reads" are look-ups of all partitions and polls of the feed, by the same backend.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import psycopg

from load.reproductions.metastore_world import ExtentQuery, World, batch, opened

STEP = 200


def cpu_ms(pids: list[int]) -> float:
    """Processor time of these backends."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e6


def backends(world: World) -> list[int]:
    """Process ids of the metastore's connections."""
    return [pid for (pid,) in world.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'headrace'")]


async def commit_many(world: World, first: int, count: int) -> float:
    """CPU milliseconds per commit of the backend."""
    before = cpu_ms(pids := backends(world))
    for number in range(first, first + count):
        await world.commit(*(batch(key, (1_000 + place, 0, number)) for place, key in enumerate(world.keys)))
    return (cpu_ms(pids) - before) / count


async def reads(world: World) -> tuple[float, float]:
    """CPU milliseconds of a look-up at the end of all partitions, and of a poll of the feed."""
    queries = [ExtentQuery(key, 1 << 40, 1) for key in world.keys]
    await world.store.find_extents(queries)
    marks = [cpu_ms(pids := backends(world))]
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: world.store.find_extents(queries),
        lambda: world.store.poll_feed({}),
    ]
    for call in calls:
        for _ in range(10):
            await call()
        marks.append(cpu_ms(pids))
    return (marks[1] - marks[0]) / 10, (marks[2] - marks[1]) / 10


async def run(partitions: int, commits: int) -> None:
    """Print the table."""
    async with opened(partitions, metastore_pool_size=1) as world:
        await commit_many(world, 0, 50)
        print(f"{partitions} partitions, one batch each; CPU in ms", flush=True)
        print("snapshot  commits since  per commit  look-up of all  feed poll", flush=True)
        done = 50
        for held in (False, True):
            with psycopg.connect(world.url) as reader:
                if held:
                    reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                    reader.execute("SELECT 1")
                for first in range(0, commits if held else 2 * STEP, STEP):
                    cost = await commit_many(world, done, STEP)
                    done += STEP
                    look_up, poll = await reads(world)
                    word = "held" if held else "none"
                    print(f"{word:8}  {first + STEP:13}  {cost:10.2f}  {look_up:14.2f}  {poll:9.2f}", flush=True)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--commits", type=int, default=1_200)
    arguments = parser.parse_args()
    asyncio.run(run(arguments.partitions, arguments.commits))


if __name__ == "__main__":
    main()
