"""A table has each committed record once, whatever fails while it is appended."""

from __future__ import annotations

from headrace.scan.tables.worker import Condition
from tests.scan.tables.world import Tables
from tests.spark.world import ScanWorld, records


async def test_a_table_follows_its_topic(world: ScanWorld, tables: Tables) -> None:
    a, b = await world.topic("orders", 2)
    await world.commit((a, records(1)), (b, records(1, 2)))
    await tables.create("orders")
    done = await tables.follow()
    assert done.condition is Condition.FOLLOWING and not any(done.lag.values())
    await tables.check()
    await world.compact(1)
    (c,) = (await world.grow("orders", 3))[2:]
    await world.commit((a, records(9)), (c, records(9)))
    await tables.follow(chunk_bytes=1)
    await tables.check()
    assert (await tables.round()).outcome is None
    assert not await world.pins()
