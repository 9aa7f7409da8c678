"""The read side for people and tools: its queries give the values' fields, and probe indexes where they page."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Select

from headrace.metastore.api.files import FileState
from headrace.metastore.api.groups import CommittedOffset
from headrace.metastore.api.reports import (
    AgentLease,
    AuditedFile,
    ConsumerLag,
    FileLevel,
    FileTotals,
    JobCount,
    JobStatus,
    Statistics,
    StoredGroup,
    TopicSize,
)
from headrace.metastore.postgres.reports import queries
from headrace.metastore.postgres.reports.reports import ReportQuery
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import InvalidError
from tests.metastore.commit_scenes import batch, file_of, open_scene
from tests.metastore.sessions import Session, rows

VALUES: list[tuple[Callable[[], Select[Any]], type]] = [
    (queries.list_jobs, JobStatus),
    (queries.count_jobs, JobCount),
    (queries.audit_files, AuditedFile),
    (queries.file_totals, FileTotals),
    (queries.statistics, Statistics),
    (queries.file_levels, FileLevel),
    (queries.list_agent_leases, AgentLease),
    (queries.consumer_lags, ConsumerLag),
    (queries.stored_groups, StoredGroup),
    (queries.topic_sizes, TopicSize),
]
EXTENTS = """
INSERT INTO extents (partition_key, last_offset, base_offset, file_id, position, length, leader_epoch, max_timestamp)
SELECT 1 << 30, n, n, gen_random_uuid(), 0, 1, 0, 0 FROM generate_series(1, 20000) AS n RETURNING 1
"""


def fields(value: type) -> tuple[str, ...]:
    """Return the fields of a named tuple or a data class, in order."""
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    return tuple(value._fields)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("query", "value"), VALUES, ids=lambda item: item.__name__)
def test_columns_are_the_fields_of_the_value(query: Callable[[], Select[Any]], value: type) -> None:
    assert tuple(column.name for column in query().selected_columns) == fields(value)


async def test_totals_say_what_was_committed(metastore: PostgresMetastore) -> None:
    scene = await open_scene(metastore, partitions=2)
    a, b = scene.keys
    file = file_of([batch(a), batch(a), batch(b)])
    await scene.commit(file)
    batches = sum(staged.length for staged in file.batches)
    assert await metastore.reports.statistics() == Statistics(1, file.size, batches, 2)
    assert await metastore.reports.file_levels() == [FileLevel(0, FileState.LIVE, 1, file.size, batches)]
    totals = await metastore.reports.file_totals()
    assert (totals.live, totals.total) == (1, 1)
    (audited,) = await metastore.reports.audit_files(uuid.UUID(int=0), 10)
    assert (audited.file_id, audited.live_bytes, len(audited.extents)) == (file.file_id, batches, 2)
    assert await metastore.reports.partition_sizes([b, 1 << 60, a]) == [
        *(file.batches[2].length, -1),
        file.batches[0].length + file.batches[1].length,
    ]


async def test_the_largest_lags_come_first_and_say_how_many_there_are(metastore: PostgresMetastore) -> None:
    scene = await open_scene(metastore, partitions=3)
    a, b, c = scene.keys
    await scene.commit(file_of([batch(a, records=5), batch(b, records=9)]))
    for group, offsets in {"slow": {a: 1, b: 0}, "quick": {a: 5, b: 8, c: 0}, "ahead": {a: 700}}.items():
        claim = await metastore.groups.claim_group(group, *scene.agent)
        assert claim is not None
        stored = [CommittedOffset(key, offset, 0, "") for key, offset in offsets.items()]
        assert all(await metastore.groups.commit_offsets(group, claim.coordinator_epoch, stored))
    lags = await metastore.reports.consumer_lags(3)
    assert all(lag.age_ms > 0 for lag in lags), "the records of these batches have timestamps of long ago"
    assert [lag._replace(age_ms=0) for lag in lags] == [
        ConsumerLag("slow", b, 9, 6),
        ConsumerLag("slow", a, 4, 6),
        ConsumerLag("quick", b, 1, 6),
    ]
    rest = (await metastore.reports.consumer_lags(100))[3:]
    assert [lag.records for lag in rest] == [0, 0, 0], "an offset beyond the end is no negative lag"
    assert [lag.age_ms for lag in rest] == [0, 0, 0]
    assert await metastore.topics.delete_topics(await metastore.cluster.metadata_head(), [scene.topic.topic_id])
    assert await metastore.reports.consumer_lags(100) == []


async def test_the_age_of_a_lag_is_that_of_the_next_record(metastore: PostgresMetastore, raw: Session) -> None:
    scene = await open_scene(metastore, partitions=1)
    (key,) = scene.keys
    for _ in range(2):
        await scene.commit(file_of([batch(key, records=5)]))
    await rows(raw, "UPDATE extents SET max_timestamp = to_ms(now()) - 60000 WHERE base_offset = 0 RETURNING 1")
    await rows(raw, "UPDATE extents SET max_timestamp = to_ms(now()) + 60000 WHERE base_offset = 5 RETURNING 1")
    claim = await metastore.groups.claim_group("g", *scene.agent)
    assert claim is not None
    for offset, oldest_ms, newest_ms in ((4, 60_000, 360_000), (5, 0, 0)):
        await metastore.groups.commit_offsets("g", claim.coordinator_epoch, [CommittedOffset(key, offset, 0, "")])
        (lag,) = await metastore.reports.consumer_lags(10)
        assert oldest_ms <= lag.age_ms <= newest_ms, offset


async def test_the_age_of_a_lag_behind_a_marker_is_that_of_the_marker(
    metastore: PostgresMetastore, raw: Session
) -> None:
    """The next offset of a group that has read all records of a transaction is that of its marker."""
    scene = await open_scene(metastore, partitions=1)
    (key,) = scene.keys
    await scene.commit(file_of([batch(key, records=5)]))
    ended = "UPDATE extents SET max_timestamp = -1, appended_at = now() - interval '60 s' RETURNING 1"
    await rows(raw, ended)
    claim = await metastore.groups.claim_group("g", *scene.agent)
    assert claim is not None
    await metastore.groups.commit_offsets("g", claim.coordinator_epoch, [CommittedOffset(key, 4, 0, "")])
    (lag,) = await metastore.reports.consumer_lags(10)
    assert 60_000 <= lag.age_ms <= 360_000


async def test_the_largest_topics_come_first_and_say_what_all_have(metastore: PostgresMetastore) -> None:
    scene = await open_scene(metastore, partitions=2)
    assert [size.size_bytes for size in await metastore.reports.topic_sizes(10)] == [0]
    file = file_of([batch(key) for key in scene.keys])
    await scene.commit(file)
    stored = sum(staged.length for staged in file.batches)
    assert await metastore.reports.topic_sizes(10) == [TopicSize(scene.topic.topic_id, stored, stored, 1)]
    assert await metastore.reports.topic_sizes(0) == []


async def test_a_page_of_the_audit_probes_the_files_extents(metastore: PostgresMetastore, raw: Session) -> None:
    scene = await open_scene(metastore, partitions=1)
    await scene.commit(file_of([batch(scene.keys[0])]))
    await rows(raw, EXTENTS)
    await raw.execute("ANALYZE extents")
    cursor = await raw.execute(b"EXPLAIN " + ReportQuery("audit_files").sql, {"after": uuid.UUID(int=0), "limit": 50})
    plan = "\n".join(line for (line,) in await cursor.fetchall())
    assert "extents_file" in plan
    assert "Seq Scan on extents" not in plan


async def test_a_report_refuses_a_parameter_that_it_does_not_have(metastore: PostgresMetastore) -> None:
    with pytest.raises(InvalidError, match="list_jobs refused: missing=limit unknown=count"):
        await ReportQuery("list_jobs").rows(metastore.pool, count=1)
