"""Remote segments with keys: real Postgres, real workers, a bucket in memory, time that tests move.

`events` is the audit trail as the seed's tables write it; `keys` the compacted projection. `settle` lets everything
that is under way come to its end: cleanup and janitor, again and again, with time in between.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, NamedTuple

import pytest
from prometheus_client import CollectorRegistry

from headrace.compactor.janitor import Janitor, JanitorMetrics
from headrace.compactor.permit import Undecided
from headrace.compactor.segments import SegmentCleanup, SegmentCleanupMetrics
from headrace.config.settings import Settings
from headrace.metastore.api.segment_states import RemoteLogSegmentState, RemotePartitionDeleteState
from headrace.storage.errors import FencedError
from headrace.storage.file_id import file_id_of
from tests.compactor.stores import PausingStore
from tests.compactor.world import CompactionWorld
from tests.metastore.segment_keys import with_keys
from tests.metastore.sessions import claim, move_time, rows, set_for_cluster
from tests.storage.batches import plain_batch

LEASE_MS = 60_000
HOUR = 3_600
DAY = 86_400


STARTED, FINISHED = "COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED"
DELETING, DELETED = "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"
"""States of a segment, as events and keys have them."""


class Event(NamedTuple):
    """A record of the audit trail. `state` by its name."""

    partition: int
    end_offset: int
    epoch: int
    state: str
    segment_id: uuid.UUID | None


class Key(NamedTuple):
    """A row of the projection; `state` is TOMBSTONE for a tombstone."""

    partition: int
    end_offset: int
    epoch: int
    state: str
    segment_id: uuid.UUID
    live_extents: int


class SegmentWorld(CompactionWorld):
    """A cluster at level 1 of remote.log.metadata.compaction."""

    ahead_seconds = 0.0

    async def raise_level(self) -> None:
        with_keys(self.url)
        await set_for_cluster(self.postgres, "file.delete.delay.ms", 0)

    async def filled(self, partitions: int = 1, files: int = 3) -> list[int]:
        """The partition keys of a new topic `t` that is filled."""
        keys = await self.topic("t", partitions)
        await self.fill(keys, files)
        return keys

    async def fill(self, keys: list[int], files: int = 3) -> None:
        """A batch of two records per partition and file."""
        for number in range(files):
            await self.commit(*((key, plain_batch(2, b"%d" % number * 20)) for key in keys))

    async def advance(self, seconds: float) -> None:
        """Move the metastore's clock."""
        self.ahead_seconds += seconds
        async with self.postgres.pool.connection() as raw:
            await move_time(raw, self.ahead_seconds)

    async def ask(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        async with self.postgres.pool.connection() as raw:  # a new session costs more than the question
            return await rows(raw, query, *parameters)

    async def events(self) -> list[Event]:
        """Return the events in the order of their offsets, of one metadata partition after the other."""
        found = await self.ask(
            "SELECT api_key, partition_index, end_offset, epoch, state, segment_id FROM remote_segment_events"
            " ORDER BY metadata_partition, audit_offset"
        )
        return [
            Event(index, end, epoch, _name(api_key, state), segment_id)
            for api_key, index, end, epoch, state, segment_id in found
        ]

    async def keys(self) -> list[Key]:
        """Return the keys in the order of the keys."""
        found = await self.ask(
            "SELECT partition_index, end_offset, epoch, state, segment_id, live_extents, tombstoned_at IS NOT NULL"
            " FROM remote_segments ORDER BY 1, 2, 3"
        )
        return [
            Key(index, end, epoch, "TOMBSTONE" if is_tombstone else RemoteLogSegmentState(state).name, segment_id, live)
            for index, end, epoch, state, segment_id, live, is_tombstone in found
        ]

    async def janitor(self, *, api: Any = None, store: Any = None) -> None:
        """One run of the job `delete`."""
        registry = CollectorRegistry()
        metrics = JanitorMetrics(registry, Undecided(registry))
        await self._run_job("delete", Janitor(api or self.postgres, store or self.store, metrics))

    async def clean_up(self, *, api: Any = None) -> None:
        """One run of the job `clean-up-segments`."""
        metrics = SegmentCleanupMetrics(CollectorRegistry())
        await self._run_job(
            "clean-up-segments", SegmentCleanup((api or self.postgres).segments, Settings(), metrics).handle
        )

    async def _run_job(self, kind: str, handler: Any) -> None:
        job = await claim(self.postgres, kind, key=str(uuid.uuid4()))
        try:
            await handler(job, self.lease(job))
        except BaseException:
            await self.advance(LEASE_MS / 1000 + 1)
            raise
        await self.postgres.jobs.finish_job(job.token)

    async def upload_by(self, count: int) -> list[int]:
        """So many workers, each under another lease, upload one range; only the last one still has its lease.

        All store their object before the first tries to finish; they finish in the order of their epochs, which are
        returned.
        """
        files, uploads, epochs = await self.live_files(), [], []
        for number in range(count):
            lease_ms = LEASE_MS if number == count - 1 else 1
            job = await (self.claim_next(lease_ms=lease_ms) if number else self.claim(files, 1, lease_ms=lease_ms))
            store = PausingStore(self.store)
            upload = asyncio.create_task(self.compactor(store=store).handle(job, self.lease(job)))
            stored = asyncio.create_task(store.stored.wait())
            await asyncio.wait((upload, stored), return_when=asyncio.FIRST_COMPLETED)  # also if it fails before
            stored.cancel()
            await asyncio.sleep(0.01)
            uploads.append((store, upload))
            epochs.append(job.token.epoch)
        *zombies, (store, upload) = uploads
        for overtaken, zombie in zombies:
            overtaken.resume.set()
            with pytest.raises(FencedError):
                await zombie
        store.resume.set()
        await upload
        await self.postgres.jobs.finish_job(job.token)
        return epochs

    async def settle(self) -> None:
        """Settle until nothing is under way, and all tombstones are gone."""
        for _ in range(3):
            while await self.postgres.housekeeping.purge_deleted_partitions(1_000):
                pass
            await self.clean_up()
            await self.advance(2 * HOUR)
            await self.janitor()
            await self.clean_up()
            await self.advance(DAY + 60)
            await self.clean_up()

    async def objects(self) -> set[uuid.UUID]:
        """Segment files in the bucket."""
        found = {file_id_of(info.key) async for info in self.store.list_objects("segments/")}
        return {file_id for file_id in found if file_id is not None}

    async def check_rest(self) -> None:
        """Nothing is under way: every key is readable, every object has a row, every reference is counted."""
        for key in await self.keys():
            assert (key.state, key.live_extents > 0) == ("COPY_SEGMENT_FINISHED", True), key
        named = {file_id for (file_id,) in await self.ask("SELECT file_id FROM segment_files")}
        assert await self.objects() == named, "objects and rows"
        await self.check_references()

    async def check_references(self) -> None:
        """Counters say what rows say."""
        assert not await self.ask(
            "SELECT f.file_id, f.segments, count(s.*) FROM segment_files f LEFT JOIN remote_segments s"
            " ON s.file_id = f.file_id AND s.reference = 0 AND s.tombstoned_at IS NULL"
            " GROUP BY f.file_id HAVING f.segments <> count(s.*)"
        ), "references of files"
        assert not await self.ask(
            "SELECT s.* FROM remote_segments s LEFT JOIN (SELECT p.topic_id, p.partition_index, e.segment_end,"
            " e.segment_epoch, count(*) AS extents FROM extents e JOIN partitions p USING (partition_key)"
            " WHERE e.segment_end IS NOT NULL GROUP BY 1, 2, 3, 4) AS e"
            " ON (e.topic_id, e.partition_index, e.segment_end, e.segment_epoch)"
            " = (s.topic_id, s.partition_index, s.end_offset, s.epoch)"
            " WHERE s.live_extents <> coalesce(e.extents, 0)"
            " AND EXISTS (SELECT FROM partitions p WHERE p.partition_key = s.partition_key)"
        ), "live extents of segments"
        (missing,) = (
            await self.ask(
                "SELECT count(*) FROM extents e JOIN segment_files f USING (file_id)"
                " WHERE f.level > 0 AND e.segment_end IS NULL"
            )
        )[0]
        assert missing == 0, "extents of merged files have segments"
        assert not await self.ask(
            "SELECT f.file_id, f.state FROM extents e JOIN segment_files f USING (file_id) WHERE f.state <> 0"
        ), "files that extents name are live"
        await self.check_offsets()

    async def check_offsets(self) -> None:
        """The audit has no gap from its start, both logs' heads are above what they hold, states go as they may."""
        for part, start, following in await self.ask(
            "SELECT metadata_partition, audit_start, next_audit_offset FROM remote_log_heads"
        ):
            found = await self.ask(
                "SELECT audit_offset FROM remote_segment_events WHERE metadata_partition = %s ORDER BY 1", part
            )
            assert [offset for (offset,) in found] == list(range(start, following)), f"audit of partition {part}"


def _name(api_key: int, state: int) -> str:
    return (RemotePartitionDeleteState(state) if api_key == 2 else RemoteLogSegmentState(state)).name
