"""The lifecycle of remote segments in Postgres and in the model: one history for both, and what each holds of it."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from headrace.metastore.api.compaction import NewFile, Swap, SwapInput
from headrace.metastore.api.jobs import JobToken, NewJob
from headrace.metastore.api.segments import NewSegment
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import HeadraceError, InvalidError
from headrace.storage.file_id import new_file_id
from tests.metastore.segment_keys import with_keys
from tests.metastore.sessions import move_time, rows, session, set_for_cluster
from tests.model.file_model import ShiftedClock
from tests.model.segment_api import LifecycleApi
from tests.model.segment_end_model import ModelLifecycle
from tests.nouns import flat

KEYS = """
SELECT topic_id, partition_index, end_offset, epoch, state, cause, segment_id, file_id, start_offset, live_extents,
       reference, tombstoned_at IS NOT NULL, due_at IS NULL, metadata_partition, log_offset FROM remote_segments
 ORDER BY 1, 2, 3, 4
"""
EVENTS = """
SELECT metadata_partition, audit_offset, log_offset, topic_id, partition_index, state, cause, segment_id, file_id
  FROM remote_segment_events ORDER BY 1, 2
"""
MARKERS = """
SELECT topic_id, partition_index, end_offset, epoch, state, tombstoned_at IS NOT NULL, log_offset
  FROM remote_partitions ORDER BY 1, 2
"""
FILES = "SELECT file_id, state, segments FROM segment_files ORDER BY 1"
HEADS = """
SELECT metadata_partition, next_offset, next_audit_offset, audit_start FROM remote_log_heads
 WHERE next_offset > 0 ORDER BY 1
"""
EXTENTS = """
SELECT partition_key, last_offset, file_id, segment_end, segment_epoch FROM extents WHERE segment_end IS NOT NULL
 ORDER BY 1, 2
"""


class View(NamedTuple):
    """All that is compared."""

    keys: list[Any]
    events: list[Any]
    markers: list[Any]
    files: list[Any]
    heads: list[Any]
    extents: list[Any]


class Started(NamedTuple):
    """An upload that both were asked to start."""

    tokens: tuple[JobToken, JobToken]
    file: NewFile
    segments: list[NewSegment]
    swaps: list[Swap]


class Sides:
    """Postgres and the model, and their common clock."""

    def __init__(self, postgres: PostgresMetastore, url: str, seed: int) -> None:
        self.postgres, self.url, self.rng = postgres, url, random.Random(seed)
        self.clock = ShiftedClock()
        self.model = ModelLifecycle(self.clock, shards=postgres.commit_shards)
        self.api = LifecycleApi(self.model)

    async def begin(self) -> None:
        """Begin the history at level 1, with the same epochs from here on."""
        with_keys(self.url)
        await set_for_cluster(self.postgres, "file.delete.delay.ms", 0)
        self.model.incarnation_id = (await self.postgres.files.janitor_state()).incarnation_id
        async with session(self.url) as raw:
            ((last, is_called),) = await rows(raw, "SELECT last_value, is_called FROM segment_epochs")
        self.model.last_epoch = last if is_called else last - 1

    async def advance(self, seconds: float) -> None:
        """Move both clocks."""
        self.clock.shift_ms += int(seconds * 1000)
        async with session(self.url) as raw:
            await move_time(raw, self.clock.shift_ms / 1000)

    async def both(self, ask: Callable[[Any, int], Awaitable[Any]]) -> Any:
        """The answer, or the error's type, which must be the same."""
        found = [await _outcome(ask(api, side)) for side, api in enumerate((flat(self.postgres), self.api))]
        assert found[0] == found[1], f"postgres says {found[0]}, the model {found[1]}"
        return found[0]

    async def claim(self, kind: str, lease_ms: int, *, is_new: bool = True) -> tuple[JobToken, JobToken] | None:
        """A lease on both sides: of a new job, or of one with a lease that is over."""
        if is_new:
            job = NewJob(kind, str(self.rng.getrandbits(64)))
            await self.postgres.jobs.enqueue_jobs([job])
            await self.model.jobs.enqueue_jobs([job])
        real = await self.postgres.jobs.claim_job("test", [kind], lease_ms)
        modelled = await self.model.jobs.claim_job("test", [kind], lease_ms)
        if real is None or modelled is None:
            assert real is modelled
            return None
        assert real.token.epoch == modelled.token.epoch
        return real.token, modelled.token

    def plan(self, tokens: tuple[JobToken, JobToken], keys: Sequence[int]) -> Started:
        """Some extents of some partitions, in one or two segments each, with a swap or two per segment."""
        segments: list[NewSegment] = []
        swaps: list[Swap] = []
        for key in keys:
            extents = self.model.partitions[key].visible_extents
            first = self.rng.randrange(len(extents)) if extents else 0
            chosen = extents[first : first + self.rng.choice((1, 2, 4))]
            cut = self.rng.randint(0, len(chosen))
            for run in (chosen[:cut], chosen[cut:]):
                if not run:
                    continue
                segment_id = uuid.UUID(int=self.rng.getrandbits(128), version=4)
                segments.append(
                    NewSegment(segment_id, key, run[0].base_offset, run[-1].last_offset, 0, 1_000, 100 * len(run))
                )
                half = self.rng.randint(0, len(run))
                for part in (run[:half], run[half:]):
                    if part:
                        inputs = tuple(SwapInput(e.last_offset, e.source) for e in part)
                        span = part[0].base_offset, part[-1].last_offset
                        swaps.append(Swap(key, *span, 100 * len(swaps), 100, 0, 1_000, inputs))
        return Started(tokens, NewFile(self.new_id(), 1, 1_000, 900), segments, swaps)

    def plan_extents(self, tokens: tuple[JobToken, JobToken], key: int, parts: Sequence[tuple[int, int]]) -> Started:
        """One segment of a partition's extents; `parts`: (first, end) of those that each swap replaces."""
        extents = self.model.partitions[key].visible_extents
        swaps: list[Swap] = []
        for first, end in parts:
            run = extents[first:end]
            inputs = tuple(SwapInput(e.last_offset, e.source) for e in run)
            span = run[0].base_offset, run[-1].last_offset
            swaps.append(Swap(key, *span, 100 * len(swaps), 100, 0, 1_000, inputs))
        segment_id = uuid.UUID(int=self.rng.getrandbits(128), version=4)
        segment = NewSegment(segment_id, key, swaps[0].base_offset, swaps[-1].last_offset, 0, 1_000, 100)
        return Started(tokens, NewFile(self.new_id(), 1, 1_000, 900), [segment], swaps)

    def new_id(self, level: int = 1) -> uuid.UUID:
        """Created now, on the common clock."""
        return new_file_id(time.time_ns() // 1_000_000 + self.clock.shift_ms, self.rng, level)

    async def real(self) -> View:
        """Return what Postgres holds."""
        async with session(self.url) as raw:
            return View(*[await rows(raw, query) for query in (KEYS, EVENTS, MARKERS, FILES, HEADS, EXTENTS)])

    def modelled(self) -> View:
        """Return what the model holds, in the same form."""
        model, logs = self.model, self.model.logs
        parts = {r.key: r.metadata_partition for r in logs.records}
        keys = [
            (*r.key, r.state, r.cause, r.segment_id, r.file_id, r.start_offset, r.live_extents, r.reference,
             r.tombstoned_ms is not None, r.due_ms is None, parts[r.key], r.log_offset)
            for r in model.rows(lambda _: True)
        ]  # fmt: skip
        events = [
            (r.metadata_partition, r.audit_offset, r.log_offset, *r.key[:2], r.state, r.cause, r.segment_id, r.file_id)
            for r in sorted(logs.records, key=lambda r: (r.metadata_partition, r.log_offset))
            if r.audit_offset is not None and r.audit_offset >= logs.audit_starts[r.metadata_partition]
        ]
        markers = [
            (*m.key, m.end_offset, m.epoch, m.state, m.tombstoned_ms is not None, m.log_offset)
            for _, m in sorted(model.markers.items())
        ]
        files = [(file_id, file.state, file.segments) for file_id, file in sorted(model.files.items())]
        heads = [
            (part, offset, logs.next_audit_offsets[part], logs.audit_starts[part])
            for part, offset in enumerate(logs.next_offsets)
            if offset
        ]
        extents = [(*place, *key[2:]) for place, key in sorted(model.segment_of.items())]
        return View(keys, events, markers, files, heads, extents)


async def _outcome(asked: Awaitable[Any]) -> Any:
    try:
        return await asked
    except InvalidError:  # an illegal transition among them: SQL's refusals have no type
        return InvalidError
    except HeadraceError as error:
        return type(error)
