"""One look-up of many lagging partitions, and what heartbeats and commits see while such look-ups run.

`python -m load.reproductions.wide_fetch`: partitions that each lag by hundreds of extents; one look-up of all as a
fetch makes it (1 MiB for each partition), then as many at once as the pool has connections, with heartbeats and commits
meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable
from typing import Any

from load.reproductions.metastore_world import ExtentQuery, HeadraceError, World, batch, opened

FILL = """
WITH made AS (
    INSERT INTO extents (partition_key, base_offset, last_offset, file_id, position, length, leader_epoch,
                         max_timestamp)
    SELECT partition_key, n, n, gen_random_uuid(), 0, 200, 0, 0
      FROM generate_series(0, {extents} - 1) AS n, partitions ORDER BY n, partition_key
) UPDATE partition_heads SET high_watermark = {extents}
"""


async def look_up(world: World) -> str:
    """One look-up of all partitions, timed."""
    began = time.monotonic()
    try:
        found = await world.store.find_extents([ExtentQuery(key, 0, 1 << 20) for key in world.keys])
    except HeadraceError as error:
        return f"failed after {time.monotonic() - began:.1f} s: {str(error).splitlines()[0][:110]}"
    extents = sum(len(answer.extents) for answer in found)
    return f"{extents} extents of {sum(bool(a.extents) for a in found)} partitions in {time.monotonic() - began:.2f} s"


async def timed(name: str, call: Awaitable[Any]) -> None:
    """Print how long `call` took, or how it failed."""
    began = time.monotonic()
    try:
        await call
        outcome = "answered"
    except HeadraceError as error:
        outcome = f"failed ({str(error).splitlines()[0][:90]})"
    print(f"  {name}: {outcome} after {time.monotonic() - began:.2f} s", flush=True)


async def run(partitions: int, extents: int) -> None:
    """Print the figures."""
    async with opened(partitions) as world:
        world.sql(FILL.format(extents=extents))
        world.sql("VACUUM ANALYZE")
        print(f"{partitions} partitions that lag by {extents} extents each", flush=True)
        print("one look-up:", await look_up(world), flush=True)
        readers = [asyncio.ensure_future(look_up(world)) for _ in range(world.store.settings.metastore_pool_size)]
        await asyncio.sleep(0.2)
        print(f"{len(readers)} look-ups at once, meanwhile:", flush=True)
        await timed("heartbeat", world.beat())
        await timed("commit", world.commit(batch(world.keys[0])))
        await timed("feed", world.store.poll_feed({}))
        for outcome in await asyncio.gather(*readers):
            print("  look-up:", outcome)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=4_000)
    parser.add_argument("--extents", type=int, default=300)
    arguments = parser.parse_args()
    asyncio.run(run(arguments.partitions, arguments.extents))


if __name__ == "__main__":
    main()
