"""A consumer with read_committed at an agent that was reading while log compaction removed the end of a transaction.

What an answer says is aborted comes with its marker, or reaches no later record of the producer: else Kafka's consumer
skips records that were committed. Only an agent that has been running for long can get this wrong; a new one knows no
more than the primary says now.
"""

from __future__ import annotations

import pytest

from tests.compactor.cleaning.test_guarantees import rolled
from tests.compactor.cleaning.test_transactions import CONFIGS, log_of
from tests.compactor.cleaning.world import CleaningWorld
from tests.transactional_world import Truth, Writer, committed, send

pytestmark = pytest.mark.requirement("R8")


async def test_records_behind_a_removed_marker_are_read_by_an_agent_that_knew_it(world: CleaningWorld) -> None:
    (key,) = await world.topic("t", 1, **CONFIGS)
    truth = Truth()
    writer = Writer(world, truth, "copy")
    await writer.begin()
    await send(world, truth, key, [("k0", "v0")])
    await writer.send(key, ("a", "no"))
    await send(world, truth, key, [("k2", "v2")])
    await writer.end(commits=False)
    await send(world, truth, key, [("k4", "v4")])
    await rolled(world, key)
    await world.clean()
    assert "marker" in (await log_of(world, key))[0], "its first pass"
    await world.wait(3)
    await writer.send(key, ("a", "yes"))  # in the active part, which no pass cleans
    await writer.end(commits=True)

    service = world.new_service()
    await service.start()
    # a reader behind the tail gets what is before the marker, and learns what was aborted there
    first = await world.request_fetch({key: 0}, isolation_level=1, partition_max_bytes=6, service=service)
    assert first.partitions[key].aborted_transactions
    await send(world, truth, key, [("k9", "v9")])
    await world.clean()
    kinds, _, aborted = await log_of(world, key)
    assert (kinds.count("marker"), aborted) == (1, 0), "the marker of the abort is gone, with its aborted transaction"
    await service._feed.catch_up()
    await world.request_fetch({key: 3}, isolation_level=1, service=service)  # the reader continues
    await send(world, truth, key, [("k10", "v10")])
    await service._feed.catch_up()

    seen = await committed(world, key, service=service)
    await service.close()
    assert ("a", "yes") in [(record.key, record.value) for record in seen]
    assert seen == truth.committed(key) == await committed(world, key)
