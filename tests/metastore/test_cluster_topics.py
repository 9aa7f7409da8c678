"""Topics in the metadata log: one winner per head, records and projection together, nothing inherited."""

from __future__ import annotations

import asyncio
import random
import uuid

import pytest

from headrace.config.cluster_values import NEEDED_TO_DELETE
from headrace.metastore.api.commit import BatchOutcome, FileCommit, FileStatus, StagedBatch
from headrace.metastore.api.groups import CommittedOffset
from headrace.metastore.api.read import ExtentQuery, FeedKind, OffsetQuery
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.keys import commit_shard, split_partition_key
from headrace.metastore.log.kip631_records import ConfigRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from headrace.metastore.log.records import decode_record
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import AlreadyExistsError, InvalidError
from headrace.storage.file_id import born_ms, new_file_id
from tests.metastore.sessions import Session, create, delete, join, new_topic, rows, session, waiting

NEW_LOG = 7 + len(NEEDED_TO_DELETE)
"""The head of a test's new log: it begins with five feature levels, and the cluster's values."""


@pytest.mark.requirement("C8")
async def test_a_topic_is_its_records_and_its_projection(metastore: PostgresMetastore, raw: Session) -> None:
    orders = new_topic("orders", 3, **{"max.message.bytes": "100"})
    image = await create(metastore, new_topic("other"), orders)

    records = [decode_record(data) for data in await metastore.cluster.read_metadata(NEW_LOG)]
    assert [type(record) for record in records] == [
        *(TopicRecord, PartitionRecord),
        *(TopicRecord, PartitionRecord, PartitionRecord, PartitionRecord, ConfigRecord),
    ]
    topic = image.topics_by_id[orders.topic_id]
    assert topic is image.topics_by_name["orders"]
    assert (topic.topic_number, topic.initial_partition_count, topic.undeleted_partition_count) == (NEW_LOG + 2, 3, 3)
    assert topic.leader_epochs == (0, 0, 0)
    assert image.topic_configs("orders") == {"max.message.bytes": "100"}
    found = await rows(raw, "SELECT partition_key, shard FROM partitions WHERE topic_id = %s", orders.topic_id)
    assert sorted(found) == [(topic.key(i), commit_shard(topic.key(i) or 0, 8)) for i in range(3)]


async def test_the_log_is_read_in_pages_without_gaps(metastore: PostgresMetastore) -> None:
    await create(metastore, new_topic("wide", 25))
    whole = await metastore.cluster.read_metadata(0)
    assert len(whole) == await metastore.cluster.metadata_head() == NEW_LOG + 26
    assert [
        record for start in range(0, len(whole), 4) for record in await metastore.cluster.read_metadata(start, 4)
    ] == whole
    assert await metastore.cluster.read_metadata(len(whole)) == []


async def test_another_head_than_expected_changes_nothing(metastore: PostgresMetastore) -> None:
    image = await create(metastore, new_topic("orders"))
    assert not await metastore.topics.create_topics(0, [new_topic("late")])
    assert not await metastore.topics.delete_topics(1, list(image.topics_by_id))
    assert await load_image(metastore.cluster) == image


@pytest.mark.requirement("C1")
async def test_of_two_who_append_at_one_head_one_wins_and_the_other_appends_after_it(
    metastore: PostgresMetastore, metastore_url: str
) -> None:
    async with session(metastore_url) as gate, gate.transaction():
        await gate.execute("SELECT lock_metadata_head()")
        first = asyncio.create_task(metastore.topics.create_topics(NEW_LOG, [new_topic("same", 2)]))
        second = asyncio.create_task(metastore.topics.create_topics(NEW_LOG, [new_topic("same", 3)]))
        async with session(metastore_url) as observer:
            await waiting(observer, 2)
    assert sorted(await asyncio.gather(first, second)) == [False, True]

    image = await load_image(metastore.cluster)
    assert len(image.topics_by_name["same"].leader_epochs) == image.offset - NEW_LOG - 1
    with pytest.raises(AlreadyExistsError, match="same"):
        await metastore.topics.create_topics(image.offset, [new_topic("same")])
    assert await load_image(metastore.cluster) == image


@pytest.mark.requirement("C1")
async def test_nothing_uncommitted_is_visible(metastore: PostgresMetastore, metastore_url: str) -> None:
    before = await create(metastore, new_topic("before"))
    call = """SELECT create_topics(%s::bigint, %s::bytea[], ARRAY[gen_random_uuid()], ARRAY[%s::bigint],
                                   '{pending}', '{1}', '{}', '{}', '{}')"""
    arguments = (before.offset, await metastore.cluster.read_metadata(0, 1), before.offset)
    async with session(metastore_url) as writer:
        async with writer.transaction(force_rollback=True):
            await writer.execute(call.encode(), arguments)
            assert await rows(writer, "SELECT count(*) FROM topics") == [(2,)]
            assert await load_image(metastore.cluster) == before
            assert await metastore.cluster.metadata_head() == before.offset
        async with session(metastore_url) as reader:
            assert await rows(reader, "SELECT name FROM topics") == [("before",)]
            assert await rows(reader, "SELECT count(*) FROM metadata_log") == [(before.offset,)]


@pytest.mark.parametrize("count", [0, -1, (1 << 24) + 1])
async def test_an_impossible_partition_count_is_refused(metastore: PostgresMetastore, count: int) -> None:
    with pytest.raises(InvalidError, match="partition count"):
        await metastore.topics.create_topics(0, [new_topic("odd", count)])
    assert await metastore.cluster.metadata_head() == NEW_LOG


async def test_deleting_what_is_not_there_changes_nothing(metastore: PostgresMetastore) -> None:
    image = await create(metastore, new_topic("orders"))
    with pytest.raises(InvalidError, match="not there"):
        await metastore.topics.delete_topics(image.offset, [next(iter(image.topics_by_id)), uuid.uuid4()])
    assert await load_image(metastore.cluster) == image


@pytest.mark.requirement("C8")
async def test_one_record_deletes_a_topic_with_everything_that_names_it(
    metastore: PostgresMetastore, raw: Session
) -> None:
    agent = await join(metastore)
    doomed, kept = new_topic("doomed", 20, **{"cleanup.policy": "compact"}), new_topic("kept", 2, a="b")
    image = await create(metastore, doomed, kept)
    keys = [image.topics_by_name["doomed"].key(i) or 0 for i in range(20)]
    other = image.topics_by_name["kept"].key(1) or 0
    claim = await metastore.groups.claim_group("readers", *agent)
    assert claim is not None
    await metastore.groups.commit_offsets(
        "readers", claim.coordinator_epoch, [CommittedOffset(key, 5, -1, "") for key in (*keys, other)]
    )
    heads = (await metastore.index.poll_feed({})).heads

    image = await delete(metastore, doomed.topic_id)

    (last,) = await metastore.cluster.read_metadata(image.offset - 1)
    assert decode_record(last) == RemoveTopicRecord(topic_id=doomed.topic_id)
    assert set(image.topics_by_name) == {"kept"}
    assert {resource for resource in image.configs if resource[0] == 2} == {(2, "kept")}
    assert image.topic_configs("kept") == {"a": "b"}
    assert [o.partition_key for o in await metastore.groups.fetch_offsets("readers", None)] == [other]
    announced = (await metastore.index.poll_feed(heads)).rows
    assert {row.kind for row in announced} == {FeedKind.TOPIC_DELETED}
    assert sorted(key for row in announced for key in row.deleted_keys) == keys
    assert all(commit_shard(key, 8) == row.shard for row in announced for key in row.deleted_keys)
    for table in ("partitions", "partition_heads", "group_offsets"):
        left = await rows(raw, f"SELECT count(*) FROM {table} WHERE partition_key = ANY (%s)", keys)
        assert left == [(0,)], table
    assert await rows(raw, "SELECT partition_key FROM deleted_partitions ORDER BY 1") == [(k,) for k in keys]
    assert await rows(raw, "SELECT resource_name FROM configs WHERE resource_type = 2") == [("kept",)]


async def _file(store: PostgresMetastore, *batches: StagedBatch) -> FileCommit:
    """A file that was created just now."""
    now_ms = (await store.index.poll_feed({})).wall_ms
    size = sum(batch.length for batch in batches)
    return FileCommit(new_file_id(now_ms, random.Random(batches[0].partition_key)), size, list(batches))


@pytest.mark.requirement("C8")
async def test_a_topic_that_is_created_again_inherits_nothing(metastore: PostgresMetastore) -> None:
    agent = await join(metastore)
    old = new_topic("events", 1)
    old_key = (await create(metastore, old)).topics_by_name["events"].key(0) or 0
    batch = StagedBatch(old_key, 0, 100, 5, 1000, 1000, 0, 0)
    (first,) = await metastore.commits.commit_files(*agent, [await _file(metastore, batch)])
    assert first.batches[0].base_offset == 0
    claim = await metastore.groups.claim_group("readers", *agent)
    assert claim is not None
    position = [CommittedOffset(old_key, 5, 0, "")]
    assert await metastore.groups.commit_offsets("readers", claim.coordinator_epoch, position) == [True]

    await delete(metastore, old.topic_id)
    key = (await create(metastore, NewTopic("events", uuid.uuid4(), 1, {}))).topics_by_name["events"].key(0) or 0

    assert split_partition_key(key)[0] > split_partition_key(old_key)[0]
    found, gone = await metastore.index.find_extents([ExtentQuery(key, 0, 1000), ExtentQuery(old_key, 0, 1000)])
    assert (found.known, found.high_watermark, found.extents) == (True, 0, [])
    assert not gone.known
    assert not (await metastore.index.list_offsets([OffsetQuery(old_key, -1)]))[0].known
    assert await metastore.groups.fetch_offsets("readers", None) == []
    assert await metastore.groups.commit_offsets("readers", claim.coordinator_epoch, position) == [False]
    # the same batch of the same producer is new here, and unknown there
    fresh = await _file(metastore, batch._replace(partition_key=key))
    stale = FileCommit(new_file_id(born_ms(fresh.file_id), random.Random(1)), 100, [batch])
    again, late = await metastore.commits.commit_files(*agent, [fresh, stale])
    assert again.status == late.status == FileStatus.COMMITTED
    assert (again.batches[0].outcome, again.batches[0].base_offset) == (BatchOutcome.APPENDED, 0)
    assert late.batches[0].outcome == BatchOutcome.UNKNOWN_PARTITION


async def test_a_commit_that_waits_behind_a_deletion_finds_the_partition_gone(
    metastore: PostgresMetastore, metastore_url: str
) -> None:
    agent = await join(metastore)
    topic = new_topic("events", 1)
    image = await create(metastore, topic)
    key = image.topics_by_name["events"].key(0) or 0
    file = await _file(metastore, StagedBatch(key, 0, 100, 5, 1000))
    async with session(metastore_url) as gate, session(metastore_url) as observer:
        async with gate.transaction():
            await gate.execute("SELECT lock_shards(array_agg(shard)) FROM commit_shards")
            deletion = asyncio.create_task(metastore.topics.delete_topics(image.offset, [topic.topic_id]))
            await waiting(observer, 1)
            commit = asyncio.create_task(metastore.commits.commit_files(*agent, [file]))
            await waiting(observer, 2)
        assert await deletion
        (answer,) = await commit
    assert answer.batches[0].outcome == BatchOutcome.UNKNOWN_PARTITION


async def test_a_deletion_waits_for_an_offset_commit_that_is_under_way(
    metastore: PostgresMetastore, metastore_url: str
) -> None:
    topic = new_topic("events", 1)
    image = await create(metastore, topic)
    key = image.topics_by_name["events"].key(0) or 0
    claim = await metastore.groups.claim_group("readers", *await join(metastore))
    assert claim is not None
    image = await load_image(metastore.cluster)
    async with session(metastore_url) as slow, session(metastore_url) as observer:
        async with slow.transaction():
            await slow.execute(
                "SELECT commit_group_offsets('readers', %s, ARRAY[%s::bigint], '{5}', '{-1}', '{\"\"}')",
                (claim.coordinator_epoch, key),
            )
            deletion = asyncio.create_task(metastore.topics.delete_topics(image.offset, [topic.topic_id]))
            await waiting(observer, 1)
        assert await deletion
        assert await rows(observer, "SELECT count(*) FROM group_offsets") == [(0,)]


async def test_commits_do_not_wait_for_the_positions_of_a_deleted_topic(
    metastore: PostgresMetastore, metastore_url: str
) -> None:
    """A topic may have offsets of any number of groups, and another session may have locked one of them."""
    agent = await join(metastore)
    doomed, other = new_topic("doomed", 1), new_topic("other", metastore.commit_shards)
    image = await create(metastore, doomed, other)
    key = image.topics_by_name["doomed"].key(0) or 0
    claim = await metastore.groups.claim_group("readers", *agent)
    assert claim is not None
    await metastore.groups.commit_offsets("readers", claim.coordinator_epoch, [CommittedOffset(key, 5, -1, "")])
    keys = [image.topics_by_name["other"].key(index) or 0 for index in range(metastore.commit_shards)]
    batches = [StagedBatch(found, number * 100, 100, 5, 1000) for number, found in enumerate(sorted(keys))]
    async with session(metastore_url) as slow, session(metastore_url) as observer:
        async with slow.transaction():
            await slow.execute("SELECT FROM group_offsets FOR UPDATE")
            deletion = asyncio.create_task(metastore.topics.delete_topics(image.offset, [doomed.topic_id]))
            await waiting(observer, 1)
            commit = asyncio.create_task(metastore.commits.commit_files(*agent, [await _file(metastore, *batches)]))
            behind = asyncio.create_task(waiting(observer, 2))
            await asyncio.wait({commit, behind}, return_when=asyncio.FIRST_COMPLETED)
            assert commit.done(), "it waits behind the deletion"
            behind.cancel()
        assert await deletion
    assert {batch.outcome for batch in (await commit)[0].batches} == {BatchOutcome.APPENDED}
