"""A stored batch that lost its answer, and that more than five later batches have overtaken.

`python -m load.reproductions.overtaken_retry`: the batch's retry, again and again, as a client sends it; then a batch
that is stored in other batches, and one that is only partly stored.
"""

from __future__ import annotations

import asyncio

from load.reproductions.metastore_world import World, batch, opened

RECORDS = 5


async def show(world: World, sequence: int, records: int = RECORDS) -> None:
    """Commit a batch; print the answer."""
    answer = await world.commit(batch(world.keys[0], (1_000, 0, sequence), records))
    (found,) = answer.batches
    print(f"sequences {sequence}-{sequence + records - 1}: {found.outcome.name} base offset {found.base_offset}")


async def run() -> None:
    """Print the answers."""
    async with opened(1, metastore_pool_size=1) as world:
        for sequence in range(0, 8 * RECORDS, RECORDS):
            await show(world, sequence)
        print("retries:")
        for _ in range(3):
            await show(world, 0)
        await show(world, 3, records=9)
        await show(world, 38)


if __name__ == "__main__":
    asyncio.run(run())
