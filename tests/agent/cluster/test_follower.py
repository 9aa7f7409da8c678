"""The follower shows what is durable, forgets what was deleted, and reads no more than it must."""

from __future__ import annotations

import asyncio
import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agent.cluster import follower as follower_module
from headrace.agent.cluster.follower import MetadataFollower
from headrace.agent.cluster.view import catch_up_briefly
from headrace.metastore.api.cluster import StoredSnapshot
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import RemoveTopicRecord
from headrace.metastore.log.replay import apply
from headrace.metastore.log.snapshot import encode_snapshot
from headrace.storage.errors import CorruptError, UnavailableError
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.manual_clock import ManualClock
from tests.seeds import examples


@pytest.mark.requirement("C1")
async def test_a_topic_is_visible_once_it_is_in_the_log(api: FakeClusterApi) -> None:
    follower = MetadataFollower(api)
    assert (await follower.catch_up()).topics_by_name == {}
    topic_id = api.add_topic("orders", 3, {"retention.ms": "5"})
    assert "orders" not in follower.image.topics_by_name
    image = await follower.catch_up()
    assert image is follower.image
    assert image.offset == len(api.log)
    assert image.topics_by_name["orders"].topic_id == topic_id
    assert image.topic_configs("orders") == {"retention.ms": "5"}


@pytest.mark.requirement("C8")
async def test_who_was_away_finds_out_what_was_deleted_meanwhile(api: FakeClusterApi) -> None:
    follower = MetadataFollower(api)
    old_id = api.add_topic("orders", 2)
    before = (await follower.catch_up()).topics_by_name["orders"]
    api.append(RemoveTopicRecord(topic_id=old_id))
    api.add_topic("orders", 2)
    image = await follower.catch_up()
    after = image.topics_by_name["orders"]
    assert old_id not in image.topics_by_id
    assert before.topic_number not in image.topics_by_number
    assert after.topic_id != old_id
    assert after.key(0) != before.key(0)


@pytest.mark.requirement("C1")
@settings(max_examples=examples(30))
@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.integers(2, 5))
async def test_any_steps_give_the_image_of_the_whole_log(appends: list[int], page: int) -> None:
    api = FakeClusterApi(ManualClock())
    follower = MetadataFollower(api)
    kept = follower_module.PAGE_RECORDS
    follower_module.PAGE_RECORDS = page
    try:
        for number, partitions in enumerate(appends):
            if partitions:
                api.add_topic(f"t{number}", partitions)
            image = await follower.catch_up()
            assert image == apply(MetadataImage(), api.log)
    finally:
        follower_module.PAGE_RECORDS = kept


async def test_nothing_new_costs_one_query(api: FakeClusterApi) -> None:
    api.add_topic("orders", 100)
    follower = MetadataFollower(api)
    await follower.catch_up()
    api.calls.clear()
    await follower.catch_up()
    assert api.calls == {"read_metadata": 1}


async def test_callers_share_reads_but_never_an_older_one(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    api.latency = 1.0
    follower = MetadataFollower(api)
    first = asyncio.create_task(follower.catch_up())
    await fake_clock.settle()
    api.add_topic("late")  # the first read is under way: it may miss this one
    others = [asyncio.create_task(follower.catch_up()) for _ in range(50)]
    await fake_clock.advance(10)
    await first
    for other in others:
        assert "late" in (await other).topics_by_name
    assert api.calls["read_metadata"] == 2


async def test_a_cancelled_caller_does_not_end_the_read_of_others(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    api.latency = 1.0
    api.add_topic("orders")
    follower = MetadataFollower(api)
    hasty, patient = asyncio.create_task(follower.catch_up()), asyncio.create_task(follower.catch_up())
    await fake_clock.settle()
    hasty.cancel()
    await fake_clock.advance(5)
    assert "orders" in (await patient).topics_by_name


@pytest.mark.parametrize("gives_up", ["is cancelled", "waits briefly"])
async def test_a_read_that_fails_after_its_caller_gave_up_leaves_no_traceback(
    api: FakeClusterApi,
    fake_clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    gives_up: str,
) -> None:
    """asyncio writes one for each task with an exception that no code looked at."""

    async def read_metadata(offset: int, limit: int) -> list[bytes]:
        await fake_clock.sleep(2)
        raise UnavailableError("down")

    monkeypatch.setattr(api, "read_metadata", read_metadata)
    follower = MetadataFollower(api)
    if gives_up == "is cancelled":
        hasty = asyncio.create_task(follower.catch_up())
        await fake_clock.settle()
        hasty.cancel()
        del hasty
    else:
        error = await fake_clock.run(catch_up_briefly(follower.catch_up, fake_clock))
        assert isinstance(error, UnavailableError)
    await fake_clock.advance(5)
    del follower
    gc.collect()
    assert not caplog.records


async def test_a_poke_reads_only_news(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    follower = MetadataFollower(api)
    api.add_topic("orders")
    follower.poke(len(api.log))
    follower.poke(len(api.log))
    await fake_clock.settle()
    assert "orders" in follower.image.topics_by_name
    assert api.calls == {"read_metadata": 1}
    follower.poke(len(api.log))
    await fake_clock.settle()
    assert api.calls == {"read_metadata": 1}


async def test_a_failure_reaches_the_caller_and_the_next_read_succeeds(
    api: FakeClusterApi, fake_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    follower = MetadataFollower(api)
    api.add_topic("orders")
    api.fail_before["read_metadata"] = [UnavailableError("down"), UnavailableError("still down")]
    with pytest.raises(UnavailableError, match="down"):
        await follower.catch_up()
    follower.poke(len(api.log))
    await fake_clock.settle()
    assert "still down" in caplog.text
    follower.poke(len(api.log))
    await fake_clock.settle()
    assert "orders" in follower.image.topics_by_name


@pytest.mark.parametrize("kept", [0, 2, 5])
async def test_a_restored_log_is_read_again(api: FakeClusterApi, kept: int) -> None:
    follower = MetadataFollower(api)
    for name in ("a", "b", "c"):
        api.add_topic(name)
    await follower.catch_up()
    del api.log[kept:]
    for number in range(6):
        api.add_topic(f"new{number}")
    image = await follower.catch_up()
    assert image == apply(MetadataImage(), api.log)


async def test_closing_ends_a_read_under_way(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    api.latency = 1.0
    follower = MetadataFollower(api)
    reading = asyncio.create_task(follower.catch_up())
    await fake_clock.settle()
    await follower.close()
    with pytest.raises(asyncio.CancelledError):
        await reading


def _snapshot(api: FakeClusterApi, end: int) -> StoredSnapshot:
    return StoredSnapshot(end, encode_snapshot(apply(MetadataImage(), api.log[:end])))


@pytest.mark.requirement("C3")
async def test_a_new_agent_starts_from_the_newest_snapshot(api: FakeClusterApi) -> None:
    for name in ("a", "b", "c"):
        api.add_topic(name, 3)
    whole = apply(MetadataImage(), api.log)
    api.snapshots = [_snapshot(api, 4), _snapshot(api, 8)]
    api.truncate(3)
    follower = MetadataFollower(api)
    assert await follower.catch_up() == whole
    assert api.calls == {"read_metadata": 1}
    api.add_topic("d")
    assert "d" in (await follower.catch_up()).topics_by_name, "and follows from there"


@pytest.mark.requirement("C3")
async def test_who_was_away_for_longer_than_the_log_goes_back_starts_from_a_snapshot(
    api: FakeClusterApi, caplog: pytest.LogCaptureFixture
) -> None:
    follower = MetadataFollower(api)
    gone = api.add_topic("gone", 3)
    await follower.catch_up()
    api.append(RemoveTopicRecord(topic_id=gone))
    api.add_topic("new", 5)
    whole = apply(MetadataImage(), api.log)
    api.snapshots = [_snapshot(api, 6), _snapshot(api, len(api.log))]
    api.truncate(5)
    assert await follower.catch_up() == whole
    assert "rebuilding metadata image" in caplog.text


async def test_a_snapshot_that_is_not_of_this_log_is_an_error_and_no_loop(api: FakeClusterApi) -> None:
    api.add_topic("a", 9)
    api.snapshots = [_snapshot(api, 10)]
    del api.log[3:]
    with pytest.raises(CorruptError, match="another metadata log"):
        await MetadataFollower(api).catch_up()


async def test_callbacks_get_each_new_image(api: FakeClusterApi) -> None:
    follower = MetadataFollower(api)
    offsets: list[int] = []
    follower.on_image.append(lambda image: offsets.append(image.offset))
    api.add_topic("a")
    await follower.catch_up()
    await follower.catch_up()
    api.add_topic("b")
    await follower.catch_up()
    assert offsets == [2, 4]
