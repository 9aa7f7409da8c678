"""A deleted topic, what the metastore had of it, and what it has after its restore."""

from __future__ import annotations

from typing import Any

from headrace.metastore.log.snapshot import load_image
from headrace.metastore.topic_restore import kept_records, newest_of, restore_deleted
from tests.metastore.byte_sums import unaccounted
from tests.metastore.commit_scenes import Scene
from tests.metastore.sessions import Session, rows, set_for_cluster

HOUR_MS = 3_600_000
DELAY = "file.delete.delay.ms"

BY_KEY = {
    "partition_heads": "partition_key",
    "extents": "partition_key",
    "time_blocks": "partition_key",
    "aborted_transactions": "partition_key",
    "group_offsets": "partition_key",
    "share_partitions": "partition_key",
    "transaction_partitions": "partition_key",
    "pending_offsets": "partition_key",
    "cleaned_partitions": "partition_key",
    "producer_state": "partition_key",
    "partition_splits": "parent_key",
    "split_producers": "parent_key",
    "partition_merges": "child_key",
    "merge_producers": "child_key",
    "partitions": "partition_key",
    "removed_partitions": "partition_key",
}
"""The tables that have rows of partitions, and the column with the key."""
RAISED = ("leader_epoch", "committed_at", "expiry_slot", "touched_hour")
"""What a restore may change: epochs of partitions rise, offsets and producers count as used."""


async def rows_of(raw: Session, scene: Scene) -> dict[str, list[Any]]:
    """Return every row of the topic, by table, without the columns of RAISED (but the epochs of records)."""
    number = scene.topic.topic_number
    found: dict[str, list[Any]] = {}
    for table, column in BY_KEY.items():
        query = f"SELECT to_jsonb(r) FROM {table} r WHERE {column} >> 24 = {number} ORDER BY to_jsonb(r)::text"
        found[table] = [_without_raised(row) for (row,) in await rows(raw, query)]
    for table, where in (
        ("topics", f"topic_number = {number}"),
        ("topic_halvings", f"topic_id = '{scene.topic.topic_id}'"),
        ("configs", f"resource_name = '{scene.topic.name}'"),
    ):
        found[table] = [row for (row,) in await rows(raw, f"SELECT to_jsonb(r) FROM {table} r WHERE {where}")]
    found["files"] = await rows(raw, "SELECT file_id, state, live_bytes, dead_at FROM segment_files ORDER BY file_id")
    return found


def _without_raised(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in RAISED}


async def keep_files(scene: Scene) -> None:
    """Give the cluster a delay of an hour."""
    await set_for_cluster(scene.store, DELAY, HOUR_MS)


async def delete_restorably(scene: Scene) -> None:
    """Delete the topic as an agent does."""
    image = await load_image(scene.store.cluster)
    topic = image.topics_by_id[scene.topic.topic_id]
    kept = {topic.topic_id: kept_records(image, topic)}
    assert await scene.store.topics.delete_topics(image.offset, [topic.topic_id], kept)


async def delete_and_purge(scene: Scene) -> None:
    """Delete the topic as an agent does, and do what housekeeping does then."""
    await delete_restorably(scene)
    await purge(scene)


async def purge(scene: Scene, limit: int = 2) -> None:
    """Do what housekeeping does with deleted partitions, until it has nothing to do."""
    while await scene.store.housekeeping.purge_deleted_partitions(
        limit
    ) or await scene.store.housekeeping.prune_removed_extents(limit):
        pass


async def restore(scene: Scene, name: str | None = None) -> None:
    """Restore the topic as the command does; the scene has its new image."""
    topic = newest_of(await scene.store.topics.restorable_topics(), scene.topic.name, scene.topic.topic_id)
    await restore_deleted(scene.store, topic, name or topic.name, lambda what, done, total: None)
    scene.topic = (await load_image(scene.store.cluster)).topics_by_id[scene.topic.topic_id]


async def nothing_is_left(raw: Session, scene: Scene) -> None:
    """Nothing of a restore or a deletion is left of the topic, and all sums are right."""
    number = scene.topic.topic_number
    for table in ("restorable_topics", "deleted_topic_rows", "deleted_topics"):
        assert await rows(raw, f"SELECT FROM {table} WHERE topic_number = {number}") == [], table
    assert await rows(raw, f"SELECT FROM deleted_partitions WHERE partition_key >> 24 = {number}") == []
    assert await unaccounted(raw) == []
