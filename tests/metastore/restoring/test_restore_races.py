"""A restore next to what else wants the same rows, in forced orders: the first one decides, and nothing is torn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.restoring import RestoreOutcome
from headrace.metastore.life.numbers import epochs_of_life
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.topic_restore import restored_topic
from headrace.storage.errors import OutcomeUnknownError
from tests.metastore.byte_sums import unaccounted
from tests.metastore.commit_scenes import Scene, appended, batch, open_scene
from tests.metastore.restoring.restore_scenes import (
    HOUR_MS,
    delete_and_purge,
    delete_restorably,
    keep_files,
    restore,
)
from tests.metastore.restoring.test_restored_records import move_back, remove
from tests.metastore.sessions import Session, claim, move_time, new_topic, rows, session, waiting

DAY_MS = 24 * HOUR_MS
DEAD_MINUTES = 80
"""Older than the row of a file is kept in any case."""


class Sessions:
    """Two sessions of the test's own: one that holds a transaction open, and one that looks on."""

    def __init__(self, holding: Session, looking: Session) -> None:
        self._holding, self.raw = holding, looking

    @asynccontextmanager
    async def first(self, query: str, *parameters: Any) -> AsyncIterator[list[tuple[Any, ...]]]:
        """What the query returned; its transaction ends with the block."""
        async with self._holding.transaction():
            yield await rows(self._holding, query, *parameters)


@pytest.fixture
async def sessions(metastore_url: str) -> AsyncIterator[Sessions]:
    async with session(metastore_url) as holding, session(metastore_url) as looking:
        yield Sessions(holding, looking)


@pytest.fixture
async def scene(metastore: PostgresMetastore) -> Scene:
    """A topic of one partition with four extents, in a file each."""
    scene = await open_scene(metastore)
    await keep_files(scene)
    for sequence in range(0, 20, 5):
        await scene.outcomes(batch(scene.keys[0], sequence))
    return scene


async def janitor(store: PostgresMetastore) -> tuple[JobToken, Any]:
    job = await claim(store, "delete", lease_ms=DAY_MS)
    return job.token, (await store.files.janitor_state()).incarnation_id


async def after_the_delay(scene: Scene, raw: Session) -> None:
    """All files are dead for longer than the delay, and the topic is being restored since before that."""
    await delete_and_purge(scene)
    await move_time(raw, DEAD_MINUTES * 60)
    await raw.execute("UPDATE restorable_topics SET restoring_until = wall_time() + interval '1 minute'")


class TestJanitor:
    """A file is given to the janitor or comes back, never both."""

    async def test_the_restore_is_first(self, scene: Scene, sessions: Sessions) -> None:
        await after_the_delay(scene, sessions.raw)
        token, life = await janitor(scene.store)
        async with sessions.first("SELECT * FROM revive_topic(%s, 100)", scene.topic.topic_number) as found:
            assert found == [(int(RestoreOutcome.UNFINISHED), 4)]
            taking = asyncio.create_task(scene.store.files.take_dead_files(token, life, limit=100))
            await waiting(sessions.raw, 1)
        assert await taking == []
        assert await unaccounted(sessions.raw) == []

    async def test_the_janitor_is_first(self, scene: Scene, sessions: Sessions) -> None:
        await after_the_delay(scene, sessions.raw)
        token, life = await janitor(scene.store)
        query = "SELECT count(*) FROM take_dead_files(%s, %s, %s, 1)"
        async with sessions.first(query, token.job_id, token.epoch, life) as found:
            assert found == [(1,)]
            reviving = asyncio.create_task(scene.store.topics.revive_topic(scene.topic.topic_number, limit=100))
            await waiting(sessions.raw, 1)
        assert (await reviving).outcome is RestoreOutcome.FILES_GONE
        assert await rows(sessions.raw, "SELECT FROM extents") == []

    @pytest.mark.slow
    async def test_a_log_start_stops_above_a_file_that_it_takes(self, scene: Scene, sessions: Sessions) -> None:
        await remove(scene, 5)
        await move_time(sessions.raw, 60)  # so the janitor takes this file first
        await remove(scene, 20)
        await move_time(sessions.raw, DEAD_MINUTES * 60)
        token, life = await janitor(scene.store)
        query = "SELECT count(*) FROM take_dead_files(%s, %s, %s, 1)"
        async with sessions.first(query, token.job_id, token.epoch, life):
            moving = asyncio.create_task(move_back(scene))
            await waiting(sessions.raw, 1)
        assert (await moving).outcome is RestoreOutcome.UNFINISHED
        assert await move_back(scene) == (RestoreOutcome.DONE, 5, 3, 300)
        assert await unaccounted(sessions.raw) == []


class TestHousekeeping:
    """Housekeeping leaves a topic alone while it is being restored; before, it goes on."""

    async def test_the_restore_is_first(self, scene: Scene, sessions: Sessions) -> None:
        await delete_restorably(scene)
        async with sessions.first("SELECT * FROM revive_topic(%s, 100)", scene.topic.topic_number):
            assert await scene.store.housekeeping.purge_deleted_partitions(1) == 0
        assert await scene.store.housekeeping.purge_deleted_partitions(1) == 0

    async def test_the_purge_is_first(self, scene: Scene, sessions: Sessions) -> None:
        await delete_restorably(scene)
        async with sessions.first("SELECT purge_deleted_partitions(2)") as found:
            assert found == [(3,)]
            restoring = asyncio.create_task(restore(scene))
            await waiting(sessions.raw, 1)
        await restoring
        assert len(await scene.read()) == 4
        assert await unaccounted(sessions.raw) == []

    @pytest.mark.slow
    async def test_pruned_records_stay_removed(self, scene: Scene, sessions: Sessions) -> None:
        await remove(scene, 10)
        await move_time(sessions.raw, DEAD_MINUTES * 60)
        await remove(scene, 20)
        async with sessions.first("SELECT prune_removed_extents(100)") as found:
            assert found == [(2,)]
            moving = asyncio.create_task(move_back(scene))
            await waiting(sessions.raw, 1)
        assert (await moving).log_start_offset == 10
        assert await unaccounted(sessions.raw) == []


class TestClients:
    """Commits and new topics come before or after the restore."""

    @pytest.fixture
    async def call(self, scene: Scene) -> Sequence[Any]:
        """The arguments of the last call of a restore."""
        await delete_and_purge(scene)
        number = scene.topic.topic_number
        while (await scene.store.topics.revive_topic(number, limit=100)).outcome is RestoreOutcome.UNFINISHED:
            pass
        (kept,) = await scene.store.topics.restorable_topics(number)
        records, epochs = restored_topic(kept.records, kept.name, epochs_of_life(kept.life))
        head = await scene.store.cluster.metadata_head()
        return head, number, kept.name, records, list(epochs), list(epochs.values())

    async def test_a_commit_waits_and_is_appended(self, scene: Scene, sessions: Sessions, call: Sequence[Any]) -> None:
        async with sessions.first("SELECT restore_topic(%s, %s, %s, %s, %s, %s)", *call) as found:
            assert found == [(int(RestoreOutcome.DONE),)]
            committing = asyncio.create_task(scene.outcomes(batch(scene.keys[0], 20)))
            await waiting(sessions.raw, 1)
        assert await committing == appended(20)
        assert await unaccounted(sessions.raw) == []

    async def test_a_topic_of_the_name_is_not_created(
        self, scene: Scene, sessions: Sessions, call: Sequence[Any]
    ) -> None:
        async with sessions.first("SELECT restore_topic(%s, %s, %s, %s, %s, %s)", *call):
            creating = asyncio.create_task(scene.store.topics.create_topics(call[0], [new_topic(scene.topic.name)]))
            await waiting(sessions.raw, 1)
        assert not await creating
        assert list((await load_image(scene.store.cluster)).topics_by_name) == [scene.topic.name]

    async def test_an_answer_that_is_lost(
        self, scene: Scene, call: Sequence[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The command looks whether the topic is back, and does not bring it twice."""
        right, times = scene.store.topics.restore_topic, 0

        async def lost(*arguments: Any) -> RestoreOutcome:
            nonlocal times
            times += 1
            await right(*arguments)
            raise OutcomeUnknownError("lost")

        monkeypatch.setattr(scene.store.topics, "restore_topic", lost)
        await restore(scene)
        assert (times, len(await scene.read())) == (1, 4)
        assert await scene.store.topics.restorable_topics() == []
