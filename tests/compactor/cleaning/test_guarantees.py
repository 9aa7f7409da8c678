"""Each guarantee of log compaction, with the seed's own example, on Postgres and through Fetch."""

from __future__ import annotations

import asyncio

import pytest

from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.read import EpochQuery
from headrace.storage.file_id import object_key
from headrace.storage.objects.throttled import ThrottledStore
from tests.compactor.cleaning.world import CleaningWorld
from tests.manual_clock import ManualClock
from tests.overlay import Overlay

MAILS = ("bill@microsoft.com", "bill@gatesfoundation.org", "bill@gmail.com")
HOUR_MS = 3_600_000
EAGER = {"cleanup_policy": "compact", "segment_ms": str(HOUR_MS), "min_cleanable_dirty_ratio": "0.01"}


async def rolled(world: CleaningWorld, key: int, hours: float = 1.1) -> None:
    """End the active part of an EAGER topic."""
    await world.plan()
    await world.wait(hours)


@pytest.mark.requirement("L1", "L2", "L3")
async def test_the_last_mail_address_of_a_user_stays(world: CleaningWorld) -> None:
    """The seed's topic of email addresses; every offset stays a valid position."""
    (key,) = await world.topic("mails", 1, **EAGER)
    for mail in MAILS:
        await world.send(key, ("123", mail))
    await rolled(world, key)
    assert await world.clean() == 1
    assert await world.seen(key) == [(2, "123", "bill@gmail.com")]
    for offset in range(3):
        assert await world.seen(key, offset) == [(2, "123", "bill@gmail.com")], "positions 0, 1 and 2 are equivalent"
    await world.check_accounts()
    assert world.shown("removed_records_total", reason="superseded") == 2
    assert await world.clean() == 0, "nothing is dirty"


@pytest.mark.requirement("L3")
async def test_order_and_offsets_never_change(world: CleaningWorld) -> None:
    (key,) = await world.topic("t", 1, **EAGER)
    await world.send(key, ("a", "1"), ("b", "1"), ("c", "1"))
    await world.send(key, ("b", "2"), ("d", "1"), ("a", "2"))
    await world.send(key, ("e", "1"), ("b", "3"))
    await rolled(world, key)
    await world.clean()
    assert await world.seen(key) == [(2, "c", "1"), (4, "d", "1"), (5, "a", "2"), (6, "e", "1"), (7, "b", "3")]


@pytest.mark.requirement("L4")
async def test_the_active_part_and_young_records_are_not_cleaned(world: CleaningWorld) -> None:
    (key,) = await world.topic("t", 1, **EAGER, min_compaction_lag_ms=str(3 * HOUR_MS))
    await world.send(key, ("a", "1"))
    await world.send(key, ("a", "2"))
    assert await world.clean() == 0, "the active part"
    await world.wait(1.1)
    assert await world.clean() == 0, "rolled, but younger than min.compaction.lag.ms"
    state = await world.state(key, 3 * HOUR_MS)
    assert (state.roll_offset, state.cleanable_end) == (2, 0)
    await world.send(key, ("a", "3"))
    await world.wait(2)
    assert await world.clean() == 1
    assert await world.seen(key) == [(1, "a", "2"), (2, "a", "3")], "the last record is younger"
    assert (await world.state(key)).roll_offset == 3


@pytest.mark.requirement("L4")
async def test_the_active_part_ends_by_size_as_well(world: CleaningWorld) -> None:
    (key,) = await world.topic("t", 1, cleanup_policy="compact", segment_bytes="300")
    for number in range(3):
        await world.send(key, ("a", f"{number}" * 20))
        await world.plan()
        assert (await world.state(key)).roll_offset == 0
    await world.send(key, ("a", "3" * 20))
    await world.plan()
    assert (await world.state(key)).roll_offset == 4


@pytest.mark.requirement("L5")
async def test_the_dirty_ratio_decides_when(world: CleaningWorld) -> None:
    (key,) = await world.topic("t", 1, cleanup_policy="compact", segment_ms="1", min_cleanable_dirty_ratio="0.5")
    await world.send(key, *((f"k{number}", "v" * 50) for number in range(10)))
    await rolled(world, key, 0.1)
    assert await world.clean() == 1, "all of it was dirty"
    await world.send(key, *((f"k{number}", "w" * 50) for number in range(4)))
    await rolled(world, key, 0.1)
    assert await world.clean() == 0, "less than half is dirty"
    assert 0 < (await world.state(key)).dirty_bytes < (await world.state(key)).clean_bytes
    await world.send(key, *((f"k{number}", "x" * 50) for number in range(8)))
    await rolled(world, key, 0.1)
    assert await world.clean() == 1
    assert len(await world.seen(key)) == 10


@pytest.mark.requirement("L5")
async def test_max_compaction_lag_decides_when(world: CleaningWorld) -> None:
    """It ends the active part of a quiet partition, too. Its delay is shown."""
    (key,) = await world.topic("t", 1, cleanup_policy="compact", max_compaction_lag_ms=str(5 * HOUR_MS))
    await world.set_topic("t", min_cleanable_dirty_ratio="1")
    await world.send(key, ("a", "1"))
    await world.send(key, ("a", "2"))
    await world.plan()
    await world.wait(4)
    assert await world.clean() == 0
    await world.wait(3)
    assert await world.clean() == 1
    assert await world.seen(key) == [(1, "a", "2")]
    assert world.shown("max_compaction_delay_secs") == pytest.approx(2 * 3600, abs=120)


@pytest.mark.requirement("L6")
async def test_a_delete_marker_is_kept_for_its_retention_and_goes(world: CleaningWorld) -> None:
    (key,) = await world.topic("t", 1, **EAGER, delete_retention_ms=str(10 * HOUR_MS))
    await world.send(key, ("a", "1"))
    await world.send(key, ("a", None), ("b", "1"))
    await rolled(world, key)
    assert await world.clean() == 1
    marker = [(1, "a", None), (2, "b", "1")]
    assert await world.seen(key) == marker, "what it deletes is gone, the marker is not"
    await world.wait(9)
    assert await world.clean() == 0
    assert await world.seen(key) == marker
    await world.wait(1.5)
    assert await world.clean() == 1, "nothing is dirty, but a horizon has passed"
    assert await world.seen(key) == [(2, "b", "1")]
    assert world.shown("removed_records_total", reason="expired_marker") == 1
    assert (await world.state(key)).horizon_ms is None


@pytest.mark.requirement("L6")
async def test_a_swap_names_the_cleaned_offset_that_it_relies_on(world: CleaningWorld) -> None:
    """K@10's swap is lost: then that which removes null@500 may not be done, or K is back."""
    (key,) = await world.topic("t", 1, **EAGER)
    await world.send(key, ("k", "10"))
    relied: list[list[int]] = []
    right = world.postgres.cleaning.swap_cleaned_extents

    async def ahead(token: JobToken, file: object, swaps: object, cleaned: list[int]) -> object:
        """Claim that more is cleaned than is."""
        relied.append(cleaned)
        return await right(token, file, swaps, [offset + 1 for offset in cleaned])  # type: ignore[arg-type]

    await world.send(key, ("k", "11"))
    await rolled(world, key)
    assert await world.clean(metastore=Overlay(world.postgres, swap_cleaned_extents=ahead)) == 1
    assert relied == [[0]]
    assert await world.seen(key) == [(0, "k", "10"), (1, "k", "11")], "the swap was refused"
    assert (await world.state(key)).cleaned_offset == 0
    assert world.shown("passes_total", outcome="lost") == 1
    assert await world.clean() == 1, "it is due again"
    assert await world.seen(key) == [(1, "k", "11")]


@pytest.mark.requirement("L1")
async def test_the_policy_is_switched_on_a_live_topic(world: CleaningWorld) -> None:
    """Records without a key, from before the switch, are dropped and counted, as in Kafka."""
    (key,) = await world.topic("t", 1, segment_ms="1", min_cleanable_dirty_ratio="0")
    await world.send(key, ("a", "1"), (None, "keyless"))
    await world.send(key, ("a", "2"))
    await rolled(world, key, 0.1)
    assert await world.clean() == 0
    await world.set_topic("t", cleanup_policy="compact,delete")
    await rolled(world, key, 0.1)
    assert await world.clean() == 1
    assert await world.seen(key) == [(2, "a", "2")]
    assert world.shown("removed_records_total", reason="no_key") == 1
    await world.send(key, ("a", "3"))
    await rolled(world, key, 0.1)
    await world.plan_all()
    await world.set_topic("t", cleanup_policy="delete")
    assert await world.clean() == 1, "the job was planned before"
    assert await world.seen(key) == [(2, "a", "2"), (3, "a", "3")], "and does nothing"


@pytest.mark.requirement("L1")
async def test_the_policy_has_a_default_for_all_topics(world: CleaningWorld) -> None:
    (key,) = await world.topic("t", 1, segment_ms="1")
    await world.set_topic("", **{"log.cleanup.policy": "compact", "log.cleaner.min.cleanable.ratio": "0.1"})
    await world.send(key, ("a", "1"))
    await world.send(key, ("a", "2"))
    await rolled(world, key, 0.1)
    assert await world.clean() == 1
    assert await world.seen(key) == [(1, "a", "2")]


@pytest.mark.requirement("L3")
async def test_leader_epochs_keep_their_ends(world: CleaningWorld) -> None:
    (key,) = await world.topic("t", 1, **EAGER)
    for epoch in range(3):
        await world.send(key, ("a", f"{epoch}"))
        await world.raise_epoch(key, epoch + 1)
    queries = [EpochQuery(key, epoch) for epoch in range(4)]
    before = await world.postgres.index.find_epoch_ends(queries)
    await rolled(world, key)
    assert await world.clean() == 1
    assert await world.seen(key) == [(2, "a", "2")]
    assert await world.postgres.index.find_epoch_ends(queries) == before


@pytest.mark.requirement("L7")
async def test_cleaning_blocks_neither_reads_nor_writes_and_is_throttled(world: CleaningWorld) -> None:
    """A pass that waits for its byte rate: meanwhile records arrive and are read."""
    (key,) = await world.topic("t", 1, **EAGER)
    await world.send(key, ("a", "1" * 2_000))
    await world.send(key, ("a", "2" * 2_000))
    await rolled(world, key)
    clock = ManualClock()
    throttled = ThrottledStore(world.store, bytes_per_s=100, requests_per_s=500, clock=clock)
    await world.plan()
    running = asyncio.create_task(world.clean(store=throttled))
    while not clock._sleepers:  # noqa: ASYNC110 -- the pass is about to wait for the throttle
        await asyncio.sleep(0.01)
    await world.send(key, ("b", "1"))
    assert [entry[0] for entry in await world.seen(key)] == [0, 1, 2]
    assert not running.done()
    while not running.done():
        await clock.advance(30)
        await asyncio.sleep(0.01)
    assert await running == 1
    assert [entry[0] for entry in await world.seen(key)] == [1, 2]


@pytest.mark.requirement("L8")
async def test_an_unreadable_extent_makes_its_partition_uncleanable(world: CleaningWorld) -> None:
    (key,) = await world.topic("t", 1, **EAGER)
    for value in "123":
        await world.send(key, ("a", value))
    await world.compact(1, extent_bytes=1)
    first = (await world.extents(key))[0]
    sound = await world.store.get(object_key(first.file_id))
    at = first.position + first.length - 1
    await world.store.rewrite(object_key(first.file_id), lambda body: body[:at] + b"x" + body[at + 1 :])
    await rolled(world, key)
    assert await world.clean() == 1
    assert len(await world.extents(key)) == 3
    assert world.shown("passes_total", outcome="uncleanable") == 1
    assert await world.clean() == 0, "it is left out for a while"
    assert world.shown("uncleanable_partitions_count") == 1
    await world.store.rewrite(object_key(first.file_id), lambda _: sound)
    await world.wait(1.5)
    assert await world.clean() == 0, "what is damaged is read again after a day"
    await world.wait(24)
    assert await world.clean() == 1
    assert await world.seen(key) == [(2, "a", "3")]
    assert await world.postgres.compaction.damaged_parts([(key, 100)]) == []
    await world.plan()
    assert world.shown("uncleanable_partitions_count") == 0


@pytest.mark.requirement("L8")
async def test_keys_beyond_the_buffer(world: CleaningWorld) -> None:
    """A pass ends where its key map is full; a partition of which one extent does not fit is reported."""
    (key,) = await world.topic("t", 1, **EAGER)
    for name in ("a", "b", "c", "a", "b", "c"):
        await world.send(key, (name, "v"))
    await rolled(world, key)
    assert await world.clean(buffer_bytes=2 * 112) == 1
    assert (await world.state(key)).cleaned_offset == 2
    assert await world.clean(buffer_bytes=1 << 20) == 1
    assert [entry[0] for entry in await world.seen(key)] == [3, 4, 5]
    await world.send(key, *((f"k{number}", "v") for number in range(9)))
    await rolled(world, key)
    assert await world.clean(buffer_bytes=2 * 112) == 1
    assert world.shown("passes_total", outcome="uncleanable") == 1


async def test_a_deleted_topic_leaves_no_state(world: CleaningWorld) -> None:
    (key,) = await world.topic("t", 1, **EAGER)
    await world.send(key, ("a", "1"))
    await world.plan()
    assert len(await world.cleaning_rows()) == 1
    head = await world.postgres.cluster.metadata_head()
    topic_id = world.view.image.topics_by_name["t"].topic_id
    assert await world.postgres.topics.delete_topics(head, [topic_id])
    assert await world.cleaning_rows() == []
