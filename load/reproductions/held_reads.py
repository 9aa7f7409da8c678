"""What small reads and renewals cost while another session holds an old snapshot.

`python -m load.reproductions.held_reads`: rounds of updates (a commit to each partition, a heartbeat, a renewal of the
controller's lease, positions of a group in all partitions), and after each some calls of every kind, first without a
held snapshot and then with one. CPU of the metastore's backends per call, from /proc/<pid>/schedstat, in ms.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping

import psycopg

from load.machine_state import machine_state
from load.reproductions.held_snapshot import backends, cpu_ms
from load.reproductions.metastore_world import World, batch, named, opened

CommittedOffset = named("CommittedOffset", "headrace.metastore.api.groups")
GROUP, CALLS = "group", 20
INCARNATION = uuid.UUID(int=1)
LEASE_MS = 60_000

Calls = Mapping[str, Callable[[], Awaitable[object]]]


class Updates:
    """Each round is one update of every row that the calls read."""

    def __init__(self, world: World, group_epoch: int) -> None:
        self._world = world
        self._group_epoch = group_epoch
        self._made = 0

    async def make(self, rounds: int) -> None:
        """So many rounds."""
        for _ in range(rounds):
            keys, number = self._world.keys, self._made
            await self._world.commit(*(batch(key, (1_000 + place, 0, number)) for place, key in enumerate(keys)))
            await self._world.beat()
            await self.renew()
            await self.store_positions()
            self._made += 1

    async def renew(self) -> None:
        """The controller's lease."""
        await self._world.store.hold_controller_lease(1, INCARNATION, LEASE_MS)

    async def store_positions(self) -> None:
        """The group's, in all partitions."""
        positions = [CommittedOffset(key, self._made, 0, "") for key in self._world.keys]
        await self._world.store.commit_offsets(GROUP, self._group_epoch, positions)


def calls_of(world: World, updates: Updates) -> Calls:
    """By the heading of their column."""
    store, keys = world.store, world.keys
    return {
        "sizes": lambda: store.partition_sizes(keys),
        "producers": lambda: store.describe_producers(keys),
        "leases": store.agent_leases,
        "controller": store.describe_controller,
        "positions": lambda: store.fetch_offsets(GROUP, None),
        "heartbeat": world.beat,
        "renewal": updates.renew,
        "commit of positions": updates.store_positions,
    }


async def costs(world: World, calls: Calls) -> str:
    """A line of the table."""
    cells = []
    for name, call in calls.items():
        await call()
        before = cpu_ms(pids := backends(world))
        for _ in range(CALLS):
            await call()
        cells.append(f"{(cpu_ms(pids) - before) / CALLS:{max(len(name), 7)}.2f}")
    return "  ".join(cells)


async def run(partitions: int, rounds: int, steps: int) -> None:
    """Print the table."""
    async with opened(partitions, metastore_pool_size=1) as world:
        claim = await world.store.claim_group(GROUP, *world.agent[:2])
        updates = Updates(world, claim.coordinator_epoch)
        await updates.make(50)
        calls = calls_of(world, updates)
        print(f"{machine_state()}\n{partitions} partitions; CPU in ms", flush=True)
        print("snapshot  updates  " + "  ".join(f"{name:>7}" for name in calls), flush=True)
        print(f"none      {0:7}  {await costs(world, calls)}", flush=True)
        with psycopg.connect(world.url) as reader:
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT 1")
            for step in range(1, steps + 1):
                await updates.make(rounds)
                print(f"held      {step * rounds:7}  {await costs(world, calls)}", flush=True)
        world.sql("VACUUM")
        await updates.make(50)
        print(f"ended     {0:7}  {await costs(world, calls)}", flush=True)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=300, help="of updates, in each step")
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    asyncio.run(run(arguments.partitions, arguments.rounds, arguments.steps))


if __name__ == "__main__":
    main()
