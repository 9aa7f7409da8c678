"""One agent, one topic and files to commit: what the tests of the commit start from."""

from __future__ import annotations

import itertools
import random
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from headrace.metastore.api.agents import RegisteredAgent
from headrace.metastore.api.commit import BatchAnswer, BatchOutcome, FileAnswer, FileCommit, StagedBatch
from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.keys import commit_shard
from headrace.metastore.log.image import TopicImage
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.file_id import new_file_id
from tests.metastore.sessions import Session, create, join, new_topic, session

COMMIT_LOCK_CLASS = 7201
BATCH_BYTES = 100

_rng = random.Random(7)
_names = itertools.count(1)


@dataclass
class Scene:
    """An unfenced agent and a topic; `keys[i]` is its partition i."""

    store: PostgresMetastore
    agent: RegisteredAgent
    topic: TopicImage
    keys: list[int]

    def shard(self, partition: int) -> int:
        """Return which commit shard the partition falls into."""
        return commit_shard(self.keys[partition], self.store.commit_shards)

    async def commit(self, *files: FileCommit, by: RegisteredAgent | None = None) -> list[FileAnswer]:
        """Commit all in one call."""
        return await self.store.commits.commit_files(*(by or self.agent), files)

    async def outcomes(self, *batches: StagedBatch) -> list[tuple[BatchOutcome, int]]:
        """(outcome, base offset) of each, committed in one file."""
        (answer,) = await self.commit(file_of(batches))
        return [(batch.outcome, batch.base_offset) for batch in answer.batches]

    async def read(self, partition: int = 0) -> list[tuple[int, int]]:
        """The partition's extents as (base offset, last offset)."""
        (found,) = await self.store.index.find_extents([ExtentQuery(self.keys[partition], 0, 1 << 40)])
        return [(extent.base_offset, extent.last_offset) for extent in found.extents]


async def open_scene(store: PostgresMetastore, partitions: int = 1) -> Scene:
    """A new topic and a new agent."""
    topic = new_topic(f"topic-{next(_names)}", partitions)
    image = await create(store, topic)
    found = image.topics_by_id[topic.topic_id]
    keys = [key for index in range(partitions) if (key := found.key(index)) is not None]
    return Scene(store, await join(store), found, keys)


def batch(
    key: int, sequence: int = -1, records: int = 5, *, producer: int = 1000, epoch: int = 0, place: int = 0, **more: Any
) -> StagedBatch:
    """A batch of an idempotent producer, or of none without a sequence; at the `place`-th place of its file."""
    fields: dict[str, Any] = {
        "partition_key": key,
        "position": place * BATCH_BYTES,
        "length": BATCH_BYTES,
        "record_count": records,
        "max_timestamp": 1_000 + max(sequence, 0),
    }
    if sequence >= 0:
        fields |= {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
    return StagedBatch(**(fields | more))


def file_of(batches: Sequence[StagedBatch], *, age_ms: int = 0) -> FileCommit:
    """A file that holds these, one behind the other."""
    placed = [item._replace(position=place * BATCH_BYTES) for place, item in enumerate(batches)]
    return FileCommit(new_file_id(time.time_ns() // 1_000_000 - age_ms, _rng), len(placed) * BATCH_BYTES + 1, placed)


def appended(*offsets: int) -> list[tuple[BatchOutcome, int]]:
    """Return what `outcomes` says of batches appended at these offsets."""
    return [(BatchOutcome.APPENDED, offset) for offset in offsets]


def pairs(answers: Sequence[BatchAnswer]) -> list[tuple[BatchOutcome, int]]:
    """(outcome, base offset) of each."""
    return [(answer.outcome, answer.base_offset) for answer in answers]


@asynccontextmanager
async def shard_gate(url: str, *shards: int) -> AsyncIterator[Session]:
    """Hold commit shards' locks, as a slow commit would; sessions that need them wait, first come first served."""
    async with session(url) as gate:
        for shard in shards:
            await gate.execute("SELECT pg_advisory_lock(%s, %s)", (COMMIT_LOCK_CLASS, shard))
        yield gate
        await gate.execute("SELECT pg_advisory_unlock_all()")


async def condemn(connection: Session, file_id: uuid.UUID) -> None:
    """Do what the sweeper does before it deletes an object that no row names."""
    await connection.execute(
        "INSERT INTO segment_files (file_id, state, size, live_bytes, committed_at)"
        " VALUES (%s, 1, 0, 0, clock_timestamp()) ON CONFLICT DO NOTHING",
        (file_id,),
    )
