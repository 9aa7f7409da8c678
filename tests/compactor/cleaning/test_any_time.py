"""Records of any time: merged, cleaned, found by time and judged by retention, from the least int64 to the largest.

Fault model: none. An agent refuses most of these times by message.timestamp.before.max.ms and after.max.ms, which a
topic may raise; bulk writes and put-back records have not passed an agent.
"""

from __future__ import annotations

import pytest

from headrace.metastore.api.read import OffsetKind, OffsetQuery
from headrace.metastore.api.retention import OldestQuery
from headrace.storage.records.codec import Record, encode_batch
from tests.compactor.cleaning.test_guarantees import EAGER, HOUR_MS, rolled
from tests.compactor.cleaning.world import CleaningWorld

INT64_MAX = 2**63 - 1
NANOSECONDS = 1_700_000_000_000_000_000
TIMES = [-INT64_MAX - 1, -(10**15), -2, -1, 0, NANOSECONDS, INT64_MAX]
FAR_TIMES = [-INT64_MAX - 1, NANOSECONDS, INT64_MAX]


async def _send(world: CleaningWorld, key: int, value: str, time_ms: int) -> None:
    await world.commit((key, encode_batch([Record(0, time_ms, b"k", value.encode())], base_offset=0)))


@pytest.mark.requirement("L1", "L4")
@pytest.mark.parametrize("time_ms", TIMES)
async def test_a_record_of_any_time_is_merged_cleaned_and_found(world: CleaningWorld, time_ms: int) -> None:
    (key,) = await world.topic("t", 1, **EAGER)
    for value in ("1", "2"):
        await _send(world, key, value, time_ms)
    await rolled(world, key)
    await world.send(key, ("open", "3"))
    assert await world.clean() == 1
    assert [(offset, value) for offset, _, value in await world.seen(key)] == [(1, "2"), (2, "3")]
    assert next(r.timestamp for _, _, r in await world.records(key, 1)) == time_ms
    await _send(world, key, "4", time_ms)
    await rolled(world, key)
    assert await world.clean() == 1, "a cleaned part before it has such a time, too"
    assert [(offset, value) for offset, _, value in await world.seen(key)] == [(2, "3"), (3, "4")]
    await world.check_accounts()

    newest_ms = max(record.timestamp for _, _, record in await world.records(key, 0))
    _, (judged,) = await world.postgres.retention.oldest_extents([OldestQuery(key, 10)])
    judged_ms = max(extent.newest_ms for extent in judged.extents)
    assert judged_ms == newest_ms if time_ms >= 0 else newest_ms < judged_ms <= world.now_ms(), "committed after it"
    (latest,) = await world.postgres.index.list_offsets([OffsetQuery(key, OffsetKind.MAX_TIMESTAMP)])
    assert latest.extent is not None
    assert latest.extent.max_timestamp == newest_ms


@pytest.mark.requirement("L4")
@pytest.mark.parametrize("time_ms", FAR_TIMES)
async def test_a_record_of_any_time_may_wait_behind_what_is_cleaned(world: CleaningWorld, time_ms: int) -> None:
    """A time in the future stays within min.compaction.lag.ms, as in Kafka; records before and after it are served."""
    (key,) = await world.topic("t", 1, **EAGER, min_compaction_lag_ms=str(HOUR_MS))
    await world.send(key, ("a", "1"))
    await world.send(key, ("a", "2"))
    await rolled(world, key, hours=2)
    await _send(world, key, "3", time_ms)
    await world.plan()
    await world.wait(0.1)
    assert await world.clean() == 1
    assert [value for _, _, value in await world.seen(key)] == ["2", "3"]
    await world.wait(2)
    await world.send(key, ("a", "4"))
    await world.clean()
    assert [value for _, _, value in await world.seen(key)] == ["2", "3", "4"]
    await world.check_accounts()


@pytest.mark.requirement("L1")
@pytest.mark.parametrize("time_ms", FAR_TIMES)
async def test_a_record_of_any_time_leaves_one_without_a_time(world: CleaningWorld, time_ms: int) -> None:
    (key,) = await world.topic("t", 1, **EAGER)
    await _send(world, key, "1", time_ms)
    await _send(world, key, "2", -1)
    await rolled(world, key)
    assert await world.clean(extent_bytes=1 << 20) == 1
    assert [value for _, _, value in await world.seen(key)] == ["2"]
    await world.check_accounts()
