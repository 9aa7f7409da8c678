"""Linked topics in Postgres: only what continues a log is appended, for any worker, however often and late it asks."""

from __future__ import annotations

import itertools
import random
import struct
import time
import uuid
from dataclasses import dataclass

import pytest

from headrace.config.link_configs import LINK_NAME
from headrace.metastore.api.commit import BatchOutcome, StagedBatch
from headrace.metastore.api.compaction import NewFile
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.links import (
    LINKED_EPOCH,
    CopiedProducer,
    FoundTopic,
    LinkedGrowth,
    LinkedOutcome,
    LinkedRun,
    NewLinkedTopic,
    PartitionReport,
    Promotion,
    SourceReport,
)
from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.api.segments import NewSegment, StartOutcome
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.keys import partition_key
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.replay import apply
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import FencedError
from headrace.storage.file_id import new_file_id
from tests.metastore.commit_scenes import batch, file_of
from tests.metastore.segment_keys import with_keys
from tests.metastore.sessions import Session, claim, join
from tests.seeds import seeds

DONE, LOST, OWN = LinkedOutcome.DONE, LinkedOutcome.LOST, LinkedOutcome.OWN_PRODUCER
SOURCE = uuid.UUID(int=77)
_jobs = itertools.count(1)


@dataclass
class LinkedScene:
    """A linked topic with two partitions, and a worker with a lease."""

    store: PostgresMetastore
    topic_id: uuid.UUID
    keys: list[int]
    token: JobToken
    controller_epoch: int
    rng: random.Random

    async def head(self) -> int:
        return await self.store.cluster.metadata_head()

    async def start(self, *runs: LinkedRun) -> NewFile:
        """A file with these runs, stored as far as the metastore can know; each partition's runs are one segment."""
        size = sum(run.length for run in runs)
        file = NewFile(new_file_id(time.time_ns() // 1_000_000, self.rng, 1), 1, size, size)
        segments = []
        for key in dict.fromkeys(run.partition_key for run in runs):
            own = [run for run in runs if run.partition_key == key]
            segment_id = uuid.UUID(int=self.rng.getrandbits(128), version=4)
            bounds = own[0].base_offset, own[-1].last_offset, own[0].leader_epoch
            segments.append(NewSegment(segment_id, key, *bounds, 1, sum(run.length for run in own)))
        outcome = await self.store.segments.start_segments(self.token, file.file_id, 1, segments)
        assert outcome is StartOutcome.DONE
        return file

    async def append(self, *runs: LinkedRun, producers: tuple[CopiedProducer, ...] = ()) -> list[LinkedOutcome]:
        """Under another lease each time: a lease that lost a chunk cannot upload one with the same end again."""
        self.token = (await claim(self.store, "link-copy", key=f"old/{next(_jobs)}", lease_ms=60_000)).token
        return await self.store.links.append_linked(self.token, await self.start(*runs), runs, producers)

    async def offsets(self, partition: int = 0) -> list[tuple[int, int]]:
        query = ExtentQuery(self.keys[partition], 0, 1 << 40)
        (found,) = await self.store.index.find_extents([query])
        return [(extent.base_offset, extent.last_offset) for extent in found.extents]

    def run(self, base: int, last: int, *, partition: int = 0, epoch: int = 3) -> LinkedRun:
        return LinkedRun(self.keys[partition], base, last, 0, 100, epoch, 1_000)


async def _controller(store: PostgresMetastore, raw: Session) -> int:
    """A controller epoch that holds."""
    await raw.execute("UPDATE controller SET controller_epoch = 5, deadline = 'infinity'")
    return 5


@pytest.fixture
async def scene(metastore: PostgresMetastore, metastore_url: str, raw: Session) -> LinkedScene:
    with_keys(metastore_url)
    epoch = await _controller(metastore, raw)
    topic = NewTopic("orders", uuid.UUID(int=5), 2, {LINK_NAME: "old"})
    head = await metastore.cluster.metadata_head()
    created = NewLinkedTopic(topic, "old", SOURCE, LINKED_EPOCH)
    assert await metastore.links.create_linked_topics(epoch, head, [created])
    job = await claim(metastore, "link-copy", key="old/0", lease_ms=60_000)
    keys = [partition_key(head, index) for index in range(2)]
    return LinkedScene(metastore, topic.topic_id, keys, job.token, epoch, random.Random(1))


@pytest.mark.requirement("X14")
async def test_a_chunk_is_appended_where_it_continues_the_log_and_nowhere_else(scene: LinkedScene) -> None:
    assert await scene.append(scene.run(0, 9), scene.run(10, 14)) == [DONE, DONE]
    for late in [scene.run(0, 9)], [scene.run(14, 20)], [scene.run(16, 20)], [scene.run(15, 20), scene.run(22, 30)]:
        assert set(await scene.append(*late)) == {LOST}
    both = await scene.append(scene.run(15, 15), scene.run(0, 4, partition=1))
    assert both == [DONE, DONE]
    mixed = await scene.append(scene.run(15, 16), scene.run(5, 6, partition=1))
    assert mixed == [LOST, DONE], "one partition's delay is not another's"
    assert await scene.offsets() == [(0, 9), (10, 14), (15, 15)]
    assert await scene.offsets(1) == [(0, 4), (5, 6)]


@pytest.mark.requirement("X14")
async def test_a_call_that_comes_again_changes_nothing(scene: LinkedScene) -> None:
    runs = [scene.run(0, 9), scene.run(0, 3, partition=1)]
    file = await scene.start(*runs)
    assert await scene.store.links.append_linked(scene.token, file, runs, ()) == [DONE, DONE]
    assert await scene.store.links.append_linked(scene.token, file, runs, ()) == [LOST, LOST]
    assert await scene.offsets() == [(0, 9)]
    progress = await scene.store.links.linked_progress()
    assert [each.copied_bytes for each in progress] == [100, 100]


@pytest.mark.requirement("X14")
async def test_two_workers_with_one_partition_append_each_offset_once(scene: LinkedScene) -> None:
    old_token = scene.token
    late = await scene.start(scene.run(0, 9))
    first = await scene.append(scene.run(0, 7))
    second = await scene.store.links.append_linked(old_token, late, [scene.run(0, 9)], ())
    assert (first, second) == ([DONE], [LOST])
    assert await scene.offsets() == [(0, 7)]


async def test_without_the_lease_nothing_is_appended(scene: LinkedScene, raw: Session) -> None:
    file = await scene.start(scene.run(0, 9))
    await raw.execute("UPDATE jobs SET epoch = epoch + 1 WHERE job_id = %s", (scene.token.job_id,))
    with pytest.raises(FencedError):
        await scene.store.links.append_linked(scene.token, file, [scene.run(0, 9)], ())
    assert await scene.offsets() == []


@pytest.mark.requirement("X14")
async def test_leader_epochs_never_fall_and_stay_below_the_partitions_own(scene: LinkedScene) -> None:
    assert await scene.append(scene.run(0, 4, epoch=3)) == [DONE]
    assert await scene.append(scene.run(5, 9, epoch=7)) == [DONE]
    assert await scene.append(scene.run(10, 12, epoch=6)) == [LOST]
    assert await scene.append(scene.run(10, 12, epoch=LINKED_EPOCH)) == [LOST]
    assert await scene.append(scene.run(10, 12, epoch=LINKED_EPOCH - 1)) == [DONE]


async def _commit(scene: LinkedScene, *batches: StagedBatch) -> list[BatchOutcome]:
    """What an agent is answered that does not know of the link."""
    agent = await join(scene.store)
    (answer,) = await scene.store.commits.commit_files(*agent, [file_of(batches)])
    return [each.outcome for each in answer.batches]


RING = struct.pack(">iiqq", 5, 9, 5, 1_000) + struct.pack(">iiqq", 0, 4, 0, 900)


@pytest.mark.requirement("X14")
async def test_after_promotion_a_repeat_of_what_the_source_had_is_a_duplicate(scene: LinkedScene) -> None:
    producer = CopiedProducer(scene.keys[0], 4_711, 2, 10, RING)
    assert await scene.append(scene.run(0, 9), producers=(producer,)) == [DONE]
    refused = await _commit(scene, batch(scene.keys[0], 10, producer=4_711, epoch=2))
    assert refused == [BatchOutcome.PARTITION_MARKED], "a copy takes no records"
    assert await scene.store.links.ask_promotion([scene.topic_id], force=False) == 1
    await _report_ready(scene, 10)
    assert await _promote(scene)
    outcomes = await _commit(
        scene,
        batch(scene.keys[0], 5, producer=4_711, epoch=2),
        batch(scene.keys[0], 10, producer=4_711, epoch=2),
    )
    assert outcomes == [BatchOutcome.DUPLICATE, BatchOutcome.APPENDED]


async def _report_ready(scene: LinkedScene, end: int, *, other: int = 0) -> None:
    ends = zip(scene.keys, (end, other), strict=True)
    await scene.store.links.report_partitions(
        scene.token, [PartitionReport(key, 0, at, at, is_ready=True) for key, at in ends]
    )


async def _promote(scene: LinkedScene) -> bool:
    return await scene.store.links.promote_topics(
        scene.controller_epoch, await scene.head(), [scene.topic_id], ["orders"]
    )


@pytest.mark.requirement("X14")
async def test_a_copy_is_promoted_only_with_all_that_the_source_had(scene: LinkedScene) -> None:
    await scene.append(scene.run(0, 9))
    await _report_ready(scene, 10)
    assert not await _promote(scene), "it was not asked for"
    await scene.store.links.ask_promotion([scene.topic_id], force=False)
    await _report_ready(scene, 12)
    assert not await _promote(scene), "the source has more"
    await _report_ready(scene, 10)
    await scene.append(scene.run(10, 11))
    assert not await _promote(scene), "it was ready at another end"
    await scene.store.links.ask_promotion([scene.topic_id], force=True)
    assert [each.promotion for each in await scene.store.links.linked_partitions("old")] == [Promotion.FORCED] * 2
    assert await _promote(scene)
    assert await scene.store.links.linked_progress() == []
    assert await scene.append(scene.run(12, 13)) == [LOST], "a late chunk of the link"
    assert await _commit(scene, batch(scene.keys[0])) == [BatchOutcome.APPENDED]
    image = await _image(scene)
    assert image.link_of("orders") == ""


async def _image(scene: LinkedScene) -> MetadataImage:
    return apply(MetadataImage(), await scene.store.cluster.read_metadata(0))


async def test_the_log_and_the_rows_say_the_same_of_linked_topics(scene: LinkedScene, raw: Session) -> None:
    growth = LinkedGrowth(scene.topic_id, 2, 4, LINKED_EPOCH)
    assert await scene.store.links.grow_linked_topics(scene.controller_epoch, await scene.head(), [growth])
    image = await _image(scene)
    topic = image.topics_by_name["orders"]
    assert image.link_of("orders") == "old"
    rows = await (
        await raw.execute(
            "SELECT leader_epoch, state FROM partitions WHERE topic_id = %s ORDER BY 1", (topic.topic_id,)
        )
    ).fetchall()
    assert [(epoch, 7) for epoch in topic.leader_epochs] == rows == [(LINKED_EPOCH, 7)] * 4
    partitions = await scene.store.links.linked_partitions("old")
    assert [(each.name, each.partition_index, each.source_id) for each in partitions] == [
        ("orders", index, SOURCE) for index in range(4)
    ]


@pytest.mark.requirement("X14")
async def test_a_producer_id_of_this_cluster_stops_the_partition_and_new_ids_are_apart(scene: LinkedScene) -> None:
    own = await scene.store.commits.allocate_producer_ids(1_000)
    assert own.start >= 1 << 39
    producer = CopiedProducer(scene.keys[0], own[3], 0, 10, RING)
    runs = scene.run(0, 9), scene.run(0, 9, partition=1)
    assert await scene.append(*runs, producers=(producer,)) == [OWN, DONE]


@pytest.mark.requirement("X14")
@pytest.mark.parametrize("life", [0, 1])
async def test_after_a_link_is_dropped_a_new_producer_has_no_id_of_a_copied_one(
    scene: LinkedScene, raw: Session, life: int
) -> None:
    """Else its first batch would be taken for a duplicate of the copied producer's, and be lost."""
    ring = struct.pack(">iiqq", 0, 4, 0, 900)
    assert await scene.append(scene.run(0, 9), producers=(CopiedProducer(scene.keys[0], 1_000, 0, 5, ring),)) == [DONE]
    await scene.store.links.ask_promotion([scene.topic_id], force=True)
    assert await _promote(scene)
    await scene.store.links.forget_link("old")
    await raw.execute("UPDATE cluster SET life = %s", (life,))
    scene.store.pool.life = life
    new = await scene.store.commits.allocate_producer_ids(1_000)
    assert new.start >= (life << 40) + (1 << 39)
    assert await _commit(scene, batch(scene.keys[0], 0, producer=new.start)) == [BatchOutcome.APPENDED]


async def test_a_source_keeps_its_cluster_id_and_its_topics_are_replaced(scene: LinkedScene) -> None:
    links = scene.store.links
    orders = FoundTopic("old", "orders", SOURCE, 2, 7, {"retention.ms": "1"})
    assert await links.report_source(scene.token, SourceReport("old", "a", [orders]))
    await links.note_refused_topics(["orders"], ["old"], ["taken"])
    assert await links.report_source(scene.token, SourceReport("old", "a", [orders]))
    assert await links.found_topics() == [orders._replace(problem="taken")]
    assert not await links.report_source(scene.token, SourceReport("old", "b", []))
    (source,) = await links.link_sources()
    assert source.problem == "another cluster answers: expected=a found=b"
    assert await links.found_topics() == [orders._replace(problem="taken")]
    assert await links.report_source(scene.token, SourceReport("old", "", problem="away"))
    assert (await links.link_sources())[0].problem == "away"
    again = orders._replace(source_id=uuid.UUID(int=9))
    assert await links.report_source(scene.token, SourceReport("old", "a", [again]))
    assert await links.found_topics() == [again]
    await links.forget_link("old")
    assert await links.link_sources() == []


@pytest.mark.requirement("X14")
@pytest.mark.parametrize("seed", seeds(range(2), range(2, 20)))
async def test_any_order_of_calls_gives_one_log(scene: LinkedScene, seed: int) -> None:
    """Two workers plan from what they last saw, repeat calls, and come late; the log has each offset once."""
    rng = random.Random(seed)
    seen, done = [0, 0], dict[int, int]()
    pending: list[tuple[JobToken, NewFile, LinkedRun]] = []
    for _ in range(40):
        worker = rng.randrange(2)
        if pending and rng.random() < 0.3:
            token, file, run = rng.choice(pending)
        else:
            base = seen[worker]
            run = scene.run(base, base + rng.randrange(5), epoch=3)
            scene.token = (await claim(scene.store, "link-copy", key=f"old/{next(_jobs)}", lease_ms=60_000)).token
            file, token = await scene.start(run), scene.token
            pending.append((token, file, run))
        if rng.random() < 0.2:
            continue  # the call is lost on its way
        (outcome,) = await scene.store.links.append_linked(token, file, [run], ())
        if outcome is DONE:
            assert run.base_offset == len(done)
            done |= dict.fromkeys(range(run.base_offset, run.last_offset + 1), run.last_offset)
        if rng.random() < 0.7:
            seen[worker] = (await scene.store.links.linked_partitions("old"))[0].high_watermark
    assert [offset for base, last in await scene.offsets() for offset in range(base, last + 1)] == list(
        range(len(done))
    )


def _ring(*offsets: int) -> bytes:
    """Batches of five records, the newest first."""
    return b"".join(struct.pack(">iiqq", at, at + 4, at, 1_000) for at in offsets)


@pytest.mark.requirement("X14")
async def test_a_worker_that_knows_only_its_own_batches_forgets_none_of_before(scene: LinkedScene) -> None:
    """A new lease begins with nothing in memory; the last five batches are still those of the log."""
    key = scene.keys[0]
    await scene.append(scene.run(0, 14), producers=(CopiedProducer(key, 4_711, 2, 15, _ring(10, 5, 0)),))
    await scene.append(scene.run(15, 19), producers=(CopiedProducer(key, 4_711, 2, 20, _ring(15)),))
    await scene.append(scene.run(20, 29), producers=(CopiedProducer(key, 4_711, 2, 30, _ring(25, 20, 15)),))
    known = CopiedProducer(key, 4_711, 2, 30, b""), CopiedProducer(key, 4_712, 0, 7, b"")
    assert await scene.store.links.add_copied_producers(scene.token, known) == [True, True]
    await scene.store.links.ask_promotion([scene.topic_id], force=True)
    assert await _promote(scene)
    repeats = [batch(key, at, producer=4_711, epoch=2) for at in (5, 10, 15, 20, 25, 30)]
    outcomes = await _commit(scene, *repeats, batch(key, 7, producer=4_712))
    assert outcomes == [BatchOutcome.DUPLICATE] * 5 + [BatchOutcome.APPENDED] * 2


@pytest.mark.requirement("X14")
async def test_a_worker_that_does_not_know_the_sources_end_yet_reports_no_copy_as_whole(scene: LinkedScene) -> None:
    """At the beginning of each run: an empty copy would have all that the source has."""
    await scene.append(scene.run(0, 9))
    unknown = [PartitionReport(key, -1, -1, -1) for key in scene.keys]
    await scene.store.links.report_partitions(scene.token, unknown)
    first, _ = await scene.store.links.linked_progress()
    assert (first.current_ms, first.source_end) == (0, -1)
    await scene.store.links.report_partitions(scene.token, [PartitionReport(scene.keys[0], 0, 30, 30)])
    await scene.store.links.report_partitions(scene.token, unknown)
    first, _ = await scene.store.links.linked_progress()
    assert (first.current_ms, first.source_end, first.lag) == (0, 30, 20), "what an earlier run saw stays"
