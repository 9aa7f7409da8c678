"""A producer that starts on an agent that has assigned few ids, with its second batch committed first.

`python -m load.reproductions.fresh_producer`: an agent assigns one producer id; 25 hours later it assigns the next one
to a new producer. The producer's first two batches are uploaded at the same time, and the second one is committed
first, as it happens when the first upload is repeated. Time is moved in the database and in the agent's clock.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from typing import Any

from load.reproductions.metastore_world import FileCommit, World, batch, named, new_file_id, opened

ProducerIds = named(
    "ProducerIds",
    "headrace.agent.transactions.producer_ids",
    "headrace.agent.admin.init_producer_id",
    "agent.admin.init_producer_id",
)
HOURS = 25
MOVE = """
CREATE OR REPLACE FUNCTION wall_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + {ms}
"""


class MovedClock:
    """Monotonic time that only this program moves."""

    now = 0.0

    def monotonic(self) -> float:
        """Seconds."""
        return self.now


async def commit(world: World, producer_id: int, sequence: int) -> None:
    """Commit one batch of 5 records, now in the moved time; print the answer."""
    born_ms = time.time_ns() // 1_000_000 + HOURS * 3_600_000
    staged = batch(world.keys[0], (producer_id, 0, sequence), records=5)
    file = FileCommit(new_file_id(born_ms, random.Random(sequence)), staged.length, [staged])
    (answer,) = await world.store.commit_files(*world.agent, [file])
    (found,) = answer.batches
    print(f"sequence {sequence}: {found.outcome.name} base offset {found.base_offset}", flush=True)


async def run() -> None:
    """Print the answers."""
    async with opened(1, metastore_pool_size=2) as world:
        clock = MovedClock()
        known: dict[str, Any] = {"clock": clock} if "clock" in inspect.signature(ProducerIds).parameters else {}
        ids = ProducerIds(world.store, **known)
        await ids.next()
        clock.now += HOURS * 3_600
        world.sql(MOVE.format(ms=HOURS * 3_600_000))
        world.sql("UPDATE agents SET fenced = false")
        fresh = await ids.next()
        for sequence in (5, 0, 0, 5):
            await commit(world, fresh, sequence)


if __name__ == "__main__":
    asyncio.run(run())
