"""Retention: the rule, and that the job applies it after every interruption, once and under its lease."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from headrace.compactor.permit import Undecided
from headrace.compactor.retention import (
    KEEP_ALL,
    Retention,
    RetentionMetrics,
    RetentionRule,
    topic_rule,
    wanted_log_start,
)
from headrace.config.cluster_values import proposed
from headrace.config.settings import Settings
from headrace.jobs.lease import Lease
from headrace.metastore.api.cluster import StoredSnapshot
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.retention import LogStartTarget, OldestExtents, OldestQuery, OldExtent
from headrace.metastore.keys import partition_key
from headrace.metastore.log.effective_configs import BROKER_RESOURCE, WHOLE_CLUSTER
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.kip631_records import TOPIC_RESOURCE
from headrace.metastore.log.snapshot import encode_snapshot, load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.errors import FencedError, HeadraceError
from tests.metastore.byte_sums import unaccounted
from tests.metastore.commit_scenes import BATCH_BYTES, batch, file_of, open_scene
from tests.metastore.sessions import claim, delete, session, set_for_cluster
from tests.nouns import NOUNS, flat

HOUR_MS = 3_600_000


def a_log(*extents: tuple[int, int], start: int = 0) -> OldestExtents:
    """Make a log of extents (length, newest ms) with ten records each."""
    old = [OldExtent(start + 10 * n + 9, length, newest) for n, (length, newest) in enumerate(extents)]
    end = start + 10 * len(old)
    return OldestExtents(1, True, start, end, sum(length for length, _ in extents), False, old)


# -- the rule


def test_time_stops_at_the_first_that_has_not_expired() -> None:
    log = a_log((1, 100), (1, 200), (1, 900), (1, 100))
    assert wanted_log_start(RetentionRule(500, -1), 1_000, log) == 20, "the old one behind a young one stays"
    assert wanted_log_start(RetentionRule(900, -1), 1_000, log) == 0, "just as old as retention.ms is not too old"
    assert wanted_log_start(RetentionRule(899, -1), 1_000, log) == 10


def test_everything_may_expire() -> None:
    assert wanted_log_start(RetentionRule(0, -1), 1_000, a_log((1, 100), (1, 200), start=7)) == 27
    assert wanted_log_start(RetentionRule(-1, 0), 1_000, a_log((1, 100), (1, 200))) == 20


def test_size_keeps_at_least_what_it_says() -> None:
    log = a_log((40, 0), (40, 0), (40, 0))
    assert [wanted_log_start(RetentionRule(-1, n), 0, log) for n in (0, 39, 40, 79, 80, 81, 120, 500)] == [
        *(30, 20, 20, 10, 10, 0, 0, 0)
    ]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 1_000)), max_size=12),
    st.integers(-1, 1_200),
    st.integers(-1, 400),
    st.integers(0, 12),
)
def test_what_stays_obeys_the_rule_and_what_goes_had_to(
    extents: list[tuple[int, int]], retention_ms: int, retention_bytes: int, seen: int
) -> None:
    now, rule, log = 1_000, RetentionRule(retention_ms, retention_bytes), a_log(*extents)
    gone = wanted_log_start(rule, now, log) // 10
    bytes_behind = [sum(length for length, _ in extents[n:]) for n in range(len(extents) + 1)]

    def must_go(n: int) -> bool:
        too_old = retention_ms >= 0 and extents[n][1] < now - retention_ms
        return too_old or 0 <= retention_bytes <= bytes_behind[n + 1]

    assert all(must_go(n) for n in range(gone))
    assert gone == len(extents) or not must_go(gone)
    partial = log._replace(extents=log.extents[:seen])
    assert wanted_log_start(rule, now, partial) == 10 * min(gone, seen), "a look at the beginning decides the same"


WEEK = {name: proposed(Settings())[name] for name in ("log.retention.ms", "log.retention.bytes")}


def rule(cluster: dict[str, str], **own: str) -> tuple[RetentionRule, set[str]]:
    """Return the rule of a topic with its own configs; and what the cluster lacks."""
    undecided: set[str] = set()
    configs = {
        (TOPIC_RESOURCE, "t"): {name.replace("_", "."): value for name, value in own.items()},
        (BROKER_RESOURCE, WHOLE_CLUSTER): cluster,
    }
    return topic_rule(MetadataImage(configs=configs), "t", undecided), undecided


def test_a_topics_rule_comes_from_its_own_config_then_the_cluster() -> None:
    assert rule(WEEK) == (RetentionRule(168 * HOUR_MS, -1), set())
    assert rule(WEEK, retention_ms="5", retention_bytes="7") == (RetentionRule(5, 7), set())
    assert rule(WEEK, retention_ms="-1") == (KEEP_ALL, set())
    assert rule(WEEK, cleanup_policy="compact") == (KEEP_ALL, set())
    assert rule(WEEK, cleanup_policy="compact,delete") == (RetentionRule(168 * HOUR_MS, -1), set())
    assert rule({"log.retention.ms": "4", "log.retention.bytes": "9"}) == (RetentionRule(4, 9), set())
    assert rule({"log.retention.ms": "-1", "log.retention.bytes": "-1"}) == (KEEP_ALL, set())


@pytest.mark.requirement("X10")
def test_without_a_value_of_topic_or_cluster_everything_is_kept() -> None:
    """No file is asked, not even for its defaults: another process may have another file."""
    assert rule({}) == (KEEP_ALL, {"log.retention.ms", "log.retention.bytes"})
    assert rule({"log.retention.ms": "4"}) == (RetentionRule(4, -1), {"log.retention.bytes"})
    assert rule({}, retention_ms="5") == (RetentionRule(5, -1), {"log.retention.bytes"})
    assert rule({}, retention_ms="5", retention_bytes="7") == (RetentionRule(5, 7), set())
    assert rule({}, cleanup_policy="") == (KEEP_ALL, set()), "it would be kept anyway"
    assert rule({"log.retention.hours": "1", "log.retention.minutes": "1"})[0] == KEEP_ALL, "units of files"


# -- the job


class Interrupted(HeadraceError):
    """The worker crashed here."""


class Interrupting:
    """The metastore, until its n-th call; that one is not made, or made and its answer lost."""

    def __init__(self, store: PostgresMetastore, calls: int, *, after: bool) -> None:
        self._store, self._calls, self._after = flat(store), calls, after

    def __getattr__(self, name: str) -> Any:
        if name in NOUNS:
            return self

        async def call(*arguments: Any, **named: Any) -> Any:
            self._calls -= 1
            if self._calls == 0 and not self._after:
                raise Interrupted(name)
            answer = await getattr(self._store, name)(*arguments, **named)
            if self._calls == 0:
                raise Interrupted(name)
            return answer

        return call


async def lease_of(store: PostgresMetastore, worker: str = "a") -> Lease:
    """The lease of a retention job that is claimed now."""
    job = await claim(store, "retention", key=str(uuid.uuid4()), worker=worker, lease_ms=30_000)
    return Lease(store.jobs, job, SystemClock(), claimed_at=0.0, lease_ms=30_000)


async def enforce(store: Any, lease: Lease) -> CollectorRegistry:
    """One run of the job."""
    registry = CollectorRegistry()
    await Retention(store, RetentionMetrics(registry), Undecided(registry))(lease.job, lease)
    return registry


async def keep(store: PostgresMetastore, retention_ms: int, retention_bytes: int = -1) -> None:
    """The cluster's rule."""
    await set_for_cluster(store, "log.retention.ms", retention_ms)
    await set_for_cluster(store, "log.retention.bytes", retention_bytes)


async def filled(store: PostgresMetastore, files: int = 6) -> Any:
    """The cluster keeps an hour. Two partitions with extents of 1970, except the newest file's."""
    await keep(store, HOUR_MS)
    scene = await open_scene(store, partitions=2)
    now_ms, _ = await store.retention.oldest_extents([OldestQuery(scene.keys[0], 1)])
    for number in range(files):
        stamp = now_ms if number == files - 1 else 1_000
        await scene.commit(file_of([batch(key, max_timestamp=stamp) for key in scene.keys]))
    return scene


async def test_old_extents_are_removed_their_files_are_dead_and_sizes_follow(
    metastore: PostgresMetastore, metastore_url: str
) -> None:
    scene = await filled(metastore)
    registry = await enforce(metastore, await lease_of(metastore))
    assert [await scene.read(n) for n in (0, 1)] == [[(25, 29)], [(25, 29)]]
    assert await metastore.reports.partition_sizes(scene.keys) == [BATCH_BYTES, BATCH_BYTES]
    assert registry.get_sample_value("headrace_retention_removed_extents_total") == 10
    assert registry.get_sample_value("headrace_retention_removed_bytes_total") == 10 * BATCH_BYTES
    async with session(metastore_url) as raw:
        assert await unaccounted(raw) == []
        found = await (await raw.execute("SELECT count(*) FROM segment_files WHERE dead_at IS NOT NULL")).fetchall()
        assert found == [(5,)]


async def test_size_and_time_of_one_topic_leave_its_neighbour_alone(metastore: PostgresMetastore) -> None:
    scene = await filled(metastore)
    await keep(metastore, -1, 3 * BATCH_BYTES)
    await enforce(metastore, await lease_of(metastore))
    assert [await scene.read(n) for n in (0, 1)] == [[(15, 19), (20, 24), (25, 29)]] * 2


async def test_batches_without_a_timestamp_are_as_old_as_their_file(metastore: PostgresMetastore) -> None:
    scene = await open_scene(metastore)
    await scene.commit(file_of([batch(scene.keys[0], max_timestamp=-1)]))
    await keep(metastore, HOUR_MS)
    await enforce(metastore, await lease_of(metastore))
    assert await scene.read() == [(0, 4)]
    await keep(metastore, 0)
    await enforce(metastore, await lease_of(metastore))
    assert await scene.read() == []


async def test_a_batch_that_claims_too_old_a_time_ends_no_other_producers_records(metastore: PostgresMetastore) -> None:
    """They share an extent, which is as old as the newest of its batches; behind it nothing else goes either."""
    await keep(metastore, HOUR_MS)
    scene = await open_scene(metastore)
    now_ms, _ = await metastore.retention.oldest_extents([OldestQuery(scene.keys[0], 1)])
    claims = [[1_000, now_ms], [1_000], [now_ms]]
    for claimed in claims:
        await scene.commit(file_of([batch(scene.keys[0], max_timestamp=stamp) for stamp in claimed]))
    await enforce(metastore, await lease_of(metastore))
    assert await scene.read() == [(0, 9), (10, 14), (15, 19)], "the second waits for the first"
    await metastore.retention.move_log_starts([LogStartTarget(scene.keys[0], 10)], max_extents=5)
    await enforce(metastore, await lease_of(metastore))
    assert await scene.read() == [(15, 19)], "as with records that have an old timestamp"


async def test_leftovers_of_delete_records_are_removed_under_any_rule(metastore: PostgresMetastore) -> None:
    scene = await filled(metastore)
    (answer,) = await metastore.retention.move_log_starts([LogStartTarget(scene.keys[0], 23)], max_extents=1)
    assert (answer.removed_extents, answer.has_more) == (1, True)
    assert await scene.read(0) == [(20, 24), (25, 29)], "invisible at once"
    assert await metastore.reports.partition_sizes(scene.keys) == [5 * BATCH_BYTES, 6 * BATCH_BYTES]
    await keep(metastore, -1)
    await enforce(metastore, await lease_of(metastore))
    assert await scene.read(0) == [(20, 24), (25, 29)], "the extent with the log start is kept"
    assert await metastore.reports.partition_sizes(scene.keys) == [2 * BATCH_BYTES, 6 * BATCH_BYTES]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_killed_at_any_step_the_next_run_ends_it(
    metastore: PostgresMetastore, metastore_url: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call is a step; small chunks make many of them."""
    monkeypatch.setattr("headrace.compactor.retention.EXTENTS_PER_MOVE", 2)
    monkeypatch.setattr("headrace.compactor.retention.EXTENTS_PER_LOOK", 3)
    monkeypatch.setattr("headrace.compactor.retention.PARTITIONS_PER_LOOK", 1)
    steps = 0
    while True:
        steps += 1
        scene = await filled(metastore)
        try:
            await enforce(Interrupting(metastore, steps, after=after), await lease_of(metastore))
        except Interrupted:
            await enforce(metastore, await lease_of(metastore, "b"))
        else:
            break
        assert [await scene.read(n) for n in (0, 1)] == [[(25, 29)], [(25, 29)]], steps
        await delete(metastore, scene.topic.topic_id)
    assert steps > 10, steps
    async with session(metastore_url) as raw:
        assert await unaccounted(raw) == []


async def test_a_worker_that_lost_its_lease_moves_nothing(metastore: PostgresMetastore) -> None:
    scene = await filled(metastore)
    lease = await lease_of(metastore)
    await metastore.jobs.finish_job(lease.token)  # ended by its current holder
    with pytest.raises(FencedError):
        await enforce(metastore, lease)
    assert len(await scene.read(0)) == 6
    with pytest.raises(FencedError):
        await metastore.retention.enforce_retention(
            [LogStartTarget(scene.keys[0], 5)], max_extents=1, by=JobToken(1 << 40, 1), metadata_offset=1 << 40
        )


async def test_a_topic_that_is_deleted_meanwhile_is_left_out(metastore: PostgresMetastore) -> None:
    """The image still has it: the metastore's word counts."""
    scene = await filled(metastore)
    gone = TopicImage(uuid.uuid4(), 99, "gone", 1, 1, (0,))

    class Stale(Interrupting):
        async def newest_snapshot(self) -> StoredSnapshot:
            image = await load_image(metastore.cluster)
            stale = dataclasses.replace(image, topics_by_name={**image.topics_by_name, "gone": gone})
            return StoredSnapshot(stale.offset, encode_snapshot(stale))

    await enforce(Stale(metastore, 0, after=False), await lease_of(metastore))
    assert await scene.read(0) == [(25, 29)]
    (answer,) = await metastore.retention.move_log_starts([LogStartTarget(partition_key(99, 0), -1)], max_extents=1)
    assert not answer.known


@pytest.mark.requirement("X10")
async def test_a_config_that_changes_between_decision_and_deletion_applies(metastore: PostgresMetastore) -> None:
    """An operator who has just raised the retention loses nothing by a worker that read the log before."""
    scene = await filled(metastore)

    class Raising(Interrupting):
        """Raises the retention just before the first deletion."""

        async def enforce_retention(self, *arguments: Any, **named: Any) -> Any:
            await keep(metastore, -1)
            return await metastore.retention.enforce_retention(*arguments, **named)

    registry = await enforce(Raising(metastore, 0, after=False), await lease_of(metastore))
    assert registry.get_sample_value("headrace_retention_removed_extents_total") == 0
    assert [len(await scene.read(n)) for n in (0, 1)] == [6, 6]


@pytest.mark.requirement("X10")
async def test_a_config_of_another_topic_that_changes_makes_retention_read_again_and_go_on(
    metastore: PostgresMetastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.compactor.retention.PARTITIONS_PER_LOOK", 1)
    scene = await filled(metastore)

    class Changing(Interrupting):
        """Changes a config that does not matter before each of the first deletions."""

        changes = 3

        async def enforce_retention(self, *arguments: Any, **named: Any) -> Any:
            if self.changes:
                self.changes -= 1
                await set_for_cluster(metastore, "num.partitions", 5 + self.changes)
            return await metastore.retention.enforce_retention(*arguments, **named)

    await enforce(Changing(metastore, 0, after=False), await lease_of(metastore))
    assert [await scene.read(n) for n in (0, 1)] == [[(25, 29)], [(25, 29)]]


@pytest.mark.requirement("X10")
async def test_without_values_retention_waits_and_says_so(
    metastore: PostgresMetastore, caplog: pytest.LogCaptureFixture
) -> None:
    scene = await filled(metastore)
    for name in ("log.retention.ms", "log.retention.bytes"):
        await set_for_cluster(metastore, name, None)
    registry = await enforce(metastore, await lease_of(metastore))
    assert len(await scene.read(0)) == 6
    for name in ("log.retention.ms", "log.retention.bytes"):
        assert registry.get_sample_value("headrace_deletion_waits", {"job": "retention", "setting": name}) == 1
        assert f"job=retention setting={name}" in caplog.text
    await keep(metastore, HOUR_MS)
    registry = await enforce(metastore, await lease_of(metastore))
    labels = {"job": "retention", "setting": "log.retention.ms"}
    assert registry.get_sample_value("headrace_deletion_waits", labels) == 0
    assert await scene.read(0) == [(25, 29)]


@pytest.mark.requirement("X10")
async def test_retention_of_an_older_version_is_refused(metastore: PostgresMetastore, metastore_url: str) -> None:
    """It decides by the file of its process, and calls with its job's lease."""
    scene = await filled(metastore)
    lease = await lease_of(metastore)
    async with session(metastore_url) as raw:
        with pytest.raises(psycopg.errors.RaiseException, match="older version is refused"):
            await raw.execute(
                "SELECT move_log_starts(%s, %s, %s::bigint[], %s::bigint[], 10)", (*lease.token, [scene.keys[0]], [5])
            )
    assert len(await scene.read(0)) == 6
