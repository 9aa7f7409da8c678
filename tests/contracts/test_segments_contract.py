"""Remote segments in Postgres and in the model: the same random histories, step by step the same rows and records.

Fault model: leases end while uploads are under way; uploads are tried again, recorded as finished too late, swapped
twice or under an id that is not reserved; log starts move, topics go, janitor and cleanup run at any time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.api.segment_states import RemoteLogSegmentState
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import AlreadyExistsError
from tests.contracts.segment_sides import Sides, Started
from tests.metastore.commit_scenes import batch, file_of, open_scene
from tests.metastore.sessions import delete
from tests.metastore.sql_sources import plant
from tests.seeds import seeds

SEEDS = (4, 5)
STEPS = 80
LEASE_MS = 60_000
YEAR_MS = 365 * 86_400_000
ALL = 1_000
DAY = 86_400


class History:
    """One run."""

    def __init__(self, sides: Sides) -> None:
        self.sides, self.rng, self.model = sides, sides.rng, sides.model
        self.topics: dict[int, Any] = {}
        self.tokens: list[Any] = []
        self.started: list[Started] = []

    async def run(self) -> None:
        sides = self.sides
        await sides.begin()
        janitor = await sides.claim("janitor", YEAR_MS)
        assert janitor is not None
        self.janitor = janitor
        await self.create()
        steps = (
            [self.fill] * 2
            + [self.job] * 6
            + [self.swap] * 2
            + [self.retry] * 2
            + [self.start, self.reserve, self.finish_late]
        )
        steps += [self.expire, self.expire, self.take_over, self.end_lease, self.replace, self.purge, self.old]
        steps += [self.clean_up, self.clean_up, self.release, self.delete_objects, self.delete_objects]
        for number in range(STEPS):
            step = self.fill if number < 3 else self.rng.choice(steps)
            await sides.advance(1)
            await step()
            real, modelled = await sides.real(), sides.modelled()
            for name in real._fields:
                assert getattr(modelled, name) == getattr(real, name), f"step={number} {step.__name__}: {name}"

    async def create(self) -> None:
        scene = await open_scene(self.sides.postgres, 3)
        self.scene = scene
        self.topics[scene.topic.topic_number] = scene.topic
        self.model.topic_ids[scene.topic.topic_number] = scene.topic.topic_id
        assert self.model.create_topic(scene.topic.topic_number, 3) == scene.keys
        self.model.register_agent(*scene.agent)

    async def fill(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            chosen = sorted(self.rng.sample(sorted(self.model.partitions), 2))
            file = replace(file_of([batch(key) for key in chosen]), file_id=self.sides.new_id(level=0))
            real = await self.scene.commit(file)
            assert await self.model.commit_files(*self.scene.agent, [file]) == real

    async def job(self) -> None:
        """A whole one, more or less."""
        self.tokens.append(await self.sides.claim("compact", LEASE_MS))
        await self.start()
        for step in (self.retry, self.swap, self.swap, self.end_lease):
            if self.rng.random() < 0.7:
                await step()

    async def take_over(self) -> None:
        await self.sides.advance(61)
        if (tokens := await self.sides.claim("compact", LEASE_MS, is_new=False)) is not None:
            self.tokens.append(tokens)

    async def end_lease(self) -> None:
        if self.tokens:
            tokens = self.rng.choice((self.tokens[-1], *self.tokens[-4:]))
            jobs = self.sides.postgres.jobs, self.model.jobs
            await self.sides.both(lambda _, side: jobs[side].finish_job(tokens[side]))

    async def start(self) -> None:
        if self.tokens:
            keys = sorted(self.rng.sample(sorted(self.model.partitions), self.rng.randint(1, 3)))
            await self._start(
                self.sides.plan(self.rng.choice((self.tokens[-1], self.tokens[-1], *self.tokens[-3:])), keys)
            )

    async def retry(self) -> None:
        """The same segments, as another attempt, under this lease or another one."""
        if self.started:
            some = self.rng.choice((self.started[-1], *self.started[-3:]))
            tokens = self.rng.choice((some.tokens, self.rng.choice(self.tokens)))
            file = some.file._replace(file_id=self.rng.choice((self.sides.new_id(), some.file.file_id)))
            await self._start(some._replace(tokens=tokens, file=file))

    async def reserve(self) -> None:
        """An id before its segments are known; they follow, perhaps under another id or lease."""
        tokens = await self.sides.claim("compact", LEASE_MS)
        assert tokens is not None
        self.tokens.append(tokens)
        some = self.sides.plan(tokens, [self.rng.choice(sorted(self.model.partitions))])
        ids = [some.file.file_id, self.sides.new_id()]
        await self.sides.both(lambda api, side: api.reserve_files(tokens[side], ids, 1))
        if some.segments and self.rng.random() < 0.8:
            file = some.file if self.rng.random() < 0.7 else some.file._replace(file_id=self.sides.new_id())
            some = some._replace(file=file, tokens=self.rng.choice((tokens, tokens, self.tokens[0])))
            await self.sides.both(
                lambda api, side: api.start_reserved_segments(some.tokens[side], file.file_id, 1, some.segments)
            )
            self.started.append(some)

    async def _start(self, some: Started) -> None:
        if some.segments:
            await self.sides.both(
                lambda api, side: api.start_segments(some.tokens[side], some.file.file_id, 1, some.segments)
            )
            self.started.append(some)

    async def swap(self) -> None:
        if self.started:
            some = self.rng.choice((self.started[-1], self.started[-1], *self.started[-4:]))
            tokens = self.rng.choice((some.tokens, some.tokens, some.tokens, self.tokens[-1]))
            await self.sides.both(lambda api, side: api.swap_extents(tokens[side], some.file, some.swaps))

    async def finish_late(self) -> None:
        if self.started:
            some = self.rng.choice(self.started[-5:])
            await self.sides.both(lambda api, side: api.finish_lost_upload(some.tokens[side], some.file.file_id))

    async def expire(self) -> None:
        key = self.rng.choice(sorted(self.model.partitions))
        extents = self.model.partitions[key].visible_extents
        if extents:
            target = LogStartTarget(key, self.rng.choice(extents).last_offset + 1)
            await self.sides.both(lambda api, _: api.move_log_starts([target], max_extents=ALL))

    async def replace(self) -> None:
        """A topic goes, another one comes."""
        number = self.rng.choice(sorted(self.topics))
        if self.rng.random() < 0.5:
            return
        await delete(self.sides.postgres, self.topics.pop(number).topic_id)
        self.model.delete_topic(number)
        await self.create()
        await self.purge()

    async def purge(self) -> None:
        limit = self.rng.choice((2, ALL))
        await self.sides.postgres.housekeeping.purge_deleted_partitions(limit)
        self.model.purge(limit)

    async def old(self) -> None:
        await self.sides.advance(self.rng.choice((120, 3 * 3_600, 3 * 3_600)))

    async def clean_up(self) -> None:
        both, tokens = self.sides.both, self.janitor
        await both(lambda api, side: api.end_orphaned_segments(tokens[side], ALL))
        await both(lambda api, side: api.end_unused_reservations(tokens[side], ALL))
        await both(lambda api, side: api.tombstone_segments(ALL))
        age_ms = self.rng.choice((60_000, 1000 * DAY))
        await both(lambda api, side: api.remove_tombstones(tokens[side], older_than_ms=age_ms, limit=ALL))
        await both(lambda api, side: api.finish_partition_deletes(ALL))
        audit_ms = self.rng.choice((3_600_000, 30 * 1000 * DAY))
        await both(lambda api, side: api.trim_audit(tokens[side], older_than_ms=audit_ms, limit=ALL))

    async def release(self) -> None:
        life = self.model.incarnation_id
        await self.sides.advance(self.rng.choice((0, 130)))
        await self.sides.both(lambda api, side: api.release_segments(self.janitor[side], life, limit=ALL))

    async def delete_objects(self) -> None:
        """The janitor, between the deletion of objects and that of their rows."""
        life = self.model.incarnation_id
        await self.sides.advance(130)
        await self.release()
        await self.sides.advance(2 * 3_600)

        async def taken(api: Any, side: int) -> list[Any]:
            return [file.file_id for file in await api.take_dead_files(self.janitor[side], life, limit=ALL)]

        found = await self.sides.both(taken)
        await self.sides.both(lambda api, side: api.drop_files(self.janitor[side], found))
        await self.sides.both(lambda api, _: api.tombstone_segments(ALL))


async def end_together(sides: Sides, *, by_purge: bool) -> None:
    """A later job replaces the last extents of a segment; then a log start, or a deletion, removes all of both."""
    await sides.begin()
    history = History(sides)
    await history.create()
    (key, *_), topic = history.scene.keys, history.scene.topic
    for _ in range(4):
        file = replace(file_of([batch(key)]), file_id=sides.new_id(level=0))
        await history.scene.commit(file)
        await sides.model.commit_files(*history.scene.agent, [file])
    for first in (0, 2):
        tokens = await sides.claim("compact", LEASE_MS)
        assert tokens is not None
        parts = [(0, 2), (2, 4)] if first == 0 else [(1, 2)]
        some = sides.plan_extents(tokens, key, parts)
        await sides.both(lambda api, side: api.start_segments(tokens[side], some.file.file_id, 1, some.segments))  # noqa: B023
        await sides.both(lambda api, side: api.swap_extents(tokens[side], some.file, some.swaps))  # noqa: B023
    if by_purge:
        await delete(sides.postgres, topic.topic_id)
        sides.model.delete_topic(topic.topic_number)
        await sides.postgres.housekeeping.purge_deleted_partitions(ALL)
        sides.model.purge(ALL)
    else:
        target = LogStartTarget(key, 20)
        await sides.both(lambda api, _: api.move_log_starts([target], max_extents=ALL))
    real, modelled = await sides.real(), sides.modelled()
    assert modelled == real, "step=together"
    opened = [row for row in real.keys if row[4] == RemoteLogSegmentState.DELETE_SEGMENT_STARTED]
    assert len(opened) == 1
    assert len(real.keys) == 3


@pytest.mark.requirement("R6")
@pytest.mark.parametrize("by_purge", [False, True])
async def test_keys_of_one_end_offset_end_together(
    metastore: PostgresMetastore, metastore_url: str, by_purge: bool
) -> None:
    await end_together(Sides(metastore, metastore_url, 1), by_purge=by_purge)


async def test_without_one_new_key_per_end_offset_they_cannot(metastore: PostgresMetastore, metastore_url: str) -> None:
    plant(metastore_url, "end_segments", "DISTINCT ON (topic_id, partition_index, end_offset) k.*", "k.*")
    with pytest.raises(AlreadyExistsError):
        await end_together(Sides(metastore, metastore_url, 1), by_purge=True)


@pytest.mark.requirement("R3", "R6")
@pytest.mark.parametrize("seed", seeds(SEEDS, range(6, 60)))
async def test_postgres_and_the_model_agree(seed: int, metastore: PostgresMetastore, metastore_url: str) -> None:
    await History(Sides(metastore, metastore_url, seed)).run()


BUGS = {
    "a tombstone before the object is gone": (
        "release_segments",
        "SET reference = reference_awaits_object() FROM spare",
        "SET reference = reference_released() FROM spare",
    ),
    "a higher epoch is ignored": ("start_segments", "s.epoch > p_epoch AND", "false AND"),
    "an offset is used twice": (
        "record_segments",
        "next_audit_offset = h.next_audit_offset + CASE WHEN p_is_audited THEN w.records ELSE 0 END",
        "next_audit_offset = h.next_audit_offset + w.records",
    ),
}
"""What is wrong -> (SQL file, right text, wrong text)."""


@pytest.mark.parametrize("bug", BUGS)
async def test_a_planted_bug_is_seen(bug: str, metastore: PostgresMetastore, metastore_url: str) -> None:
    plant(metastore_url, *BUGS[bug])
    with pytest.raises(AssertionError, match=r"step=|postgres says"):
        await History(Sides(metastore, metastore_url, 5)).run()
