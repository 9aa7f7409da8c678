"""Rows to segment files to the topic, without Spark: what a consumer reads, sizes, refusals, what is left behind."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace
from typing import Any

import pytest
from aiokafka.partitioner import murmur2 as kafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from headrace.compactor.audit import audit
from headrace.compactor.sweeper import Sweeper
from headrace.config.settings import Settings
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.partitions.placement import key_hash, place
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.scan.bulk.commit import BulkCommit, BulkWrite, writable_topics
from headrace.scan.bulk.options import WRITE_OPTIONS, parse_write_options
from headrace.scan.bulk.partitioner import STICKY_ROWS, murmur2, partitions_of
from headrace.scan.bulk.task import BATCH_BYTES, RUN_BYTES, BulkTask, Rows, TaskPlan
from headrace.scan.errors import BulkWriteError, OptionError
from headrace.storage.clock import SystemClock
from headrace.storage.errors import NotFoundError, UnavailableError
from headrace.storage.file_id import object_key
from headrace.storage.objects.directory import DirectoryStore
from headrace.storage.records.compression import Codec
from tests.compactor.test_compact_faults import janitor_metrics
from tests.metastore.sessions import move_time, session
from tests.nouns import NOUNS, flat
from tests.spark.world import TIME_MS, ScanWorld
from tests.storage.altered_reads import reads_of

HOUR = 3_600


class Attempts:
    """Tasks of one writer."""

    def __init__(self, world: ScanWorld) -> None:
        self.world = world
        self.clock, self.rng = SystemClock(), random.Random(1)

    async def task(self, topic: str | None = "orders", **over: Any) -> BulkTask:
        """A new attempt, with a plan that was just made."""
        image = await load_image(self.world.postgres.cluster)
        over = {"codec": Codec.NONE, "file_bytes": 1 << 25, "term_hours": 3, "driver_ahead_ms": 0} | over
        names = None if topic is None else [topic]
        plan = TaskPlan(topics=writable_topics(image, Settings(), names), topic=topic, **over)
        return BulkTask(DirectoryStore(self.world.bucket, self.clock), plan, self.clock, self.rng)

    async def stored(self, *rows: Rows, topic: str | None = "orders", **over: Any) -> list[Any]:
        """The files of an attempt."""
        task = await self.task(topic, **over)
        try:
            for each in rows:
                task.add(each)
            return task.finish()
        finally:
            task.close()

    async def commit(self, batch_id: int, files: list[Any], **over: Any) -> bool:
        """Commit by a new driver."""
        write = BulkWrite("query", batch_id, over.pop("topics", ()), over.pop("is_named", False))
        return await BulkCommit(self.world.postgres, write, self.clock, self.rng, **over).commit(files)


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_keys_go_where_javas_producer_sends_them(keys: list[bytes]) -> None:
    assert murmur2(keys).tolist() == [kafka_murmur2(key) & 0xFFFFFFFF for key in keys]
    assert partitions_of(keys, 7, 7, 0) == ([(kafka_murmur2(key) & 0x7FFFFFFF) % 7 for key in keys], 0)


@pytest.mark.requirement("P1")
@pytest.mark.parametrize(("initial", "count"), [(1, 1), (1, 6), (7, 13), (7, 14), (3, 100)])
def test_rows_of_a_topic_with_a_changed_count_go_where_our_clients_send_them(initial: int, count: int) -> None:
    keys = [str(number).encode() for number in range(500)]
    found, _ = partitions_of(keys, initial, count, 0)
    assert found == [place(key_hash(key), initial, count) for key in keys]


def test_rows_without_a_key_go_round_the_partitions() -> None:
    found, count = partitions_of([None] * (STICKY_ROWS + 1) + [b"key"], 3, 3, 2 * STICKY_ROWS)
    assert found[:-1] == [2] * STICKY_ROWS + [0]
    assert count == 3 * STICKY_ROWS + 1


@pytest.mark.requirement("X6.3")
async def test_a_consumer_reads_what_was_written(world: ScanWorld) -> None:
    await world.topic("orders", 3)
    await world.topic("stamped", 1, message_timestamp_type="LogAppendTime", compression_type="gzip")
    attempts = Attempts(world)
    rows = Rows(
        values=[b"a", None, b"", b"c" * 3_000, b"d"],
        keys=[b"k1", b"k2", None, b"k1", b"k1"],
        headers=[[("h", b"x"), ("none", None)], [], [], [], []],
        topics=["orders", "orders", "orders", "orders", "stamped"],
        partitions=[None, 2, 1, None, None],
        timestamps=[TIME_MS, TIME_MS + 1, TIME_MS, None, TIME_MS],
    )
    assert await attempts.commit(0, await attempts.stored(rows, topic=None, codec=Codec.ZSTD))
    consumed = await world.consumed("orders")
    place = (kafka_murmur2(b"k1") & 0x7FFFFFFF) % 3
    assert {(row.partition, row.key, row.value, row.headers) for row in consumed} == {
        (place, b"k1", b"a", (("h", b"x"), ("none", None))), (2, b"k2", None, ()), (1, None, b"", ()),
        (place, b"k1", b"c" * 3_000, ()),
    }  # fmt: skip
    assert sorted(row.timestamp for row in consumed)[:3] == [TIME_MS, TIME_MS, TIME_MS + 1]
    assert [row.value for row in consumed if row.key == b"k1"] == [b"a", b"c" * 3_000], "in order"
    (stamped,) = await world.consumed("stamped")
    assert (stamped.timestamp_type, stamped.timestamp > TIME_MS) == (1, True)
    await world.check_accounts()


async def test_sizes_have_bounds(world: ScanWorld) -> None:
    """Of batches, extents and files; and a topic's own limit."""
    await world.topic("orders", 2)
    await world.topic("small", 1, max_message_bytes="2000")
    attempts = Attempts(world)
    rng = random.Random(3)
    values = [rng.randbytes(100_000) for _ in range(400)]
    files = await attempts.stored(Rows(values), file_bytes=24 << 20)
    assert len(files) == 2
    runs = [run for file in files for run in file.runs]
    assert all(run.length <= RUN_BYTES for run in runs)
    assert max(run.length for run in runs) > RUN_BYTES - BATCH_BYTES
    assert await attempts.commit(0, files, chunk_runs=1)
    assert sorted(row.value for row in await world.consumed("orders")) == sorted(values)
    assert await attempts.commit(1, await attempts.stored(Rows([bytes(300)] * 50), topic="small"))
    (key,) = [key for key, name in world.names.items() if name == "small"]
    batches = await world.batches(key << 24)
    assert max(map(len, batches)) <= 2_000
    assert len(batches) < 15


@pytest.mark.parametrize(
    ("topic", "row", "text"),
    [
        ("orders", {"values": [bytes(3_000_000)]}, "record is too large: topic=orders partition="),
        ("orders", {"partitions": [3]}, "partition does not exist: topic=orders partition=3 partitions=2"),
        ("orders", {"partitions": [-1]}, "partition does not exist: topic=orders partition=-1 partitions=2"),
        ("table", {"keys": [None]}, "compacted topics take no record without a key: topic=table"),
        ("recent", {"timestamps": [5]}, "timestamp out of range: topic=recent partition=0 timestamp=5"),
        ("orders", {"timestamps": [-1]}, "timestamp out of range: topic=orders partition="),
        ("orders", {"timestamps": [2**62]}, "timestamp out of range: topic=orders partition="),
        (None, {"topics": [None]}, "a row has no topic"),
        (None, {"topics": ["ordres"]}, "topic does not exist: topic=ordres"),
    ],
)
async def test_a_row_that_does_not_fit_is_named(
    world: ScanWorld, topic: str | None, row: dict[str, Any], text: str
) -> None:
    await world.topic("orders", 2)
    await world.topic("table", 1, cleanup_policy="compact")
    await world.topic("recent", 1, message_timestamp_before_max_ms="1000")
    good: dict[str, Any] = {"values": [b"v"], "keys": [b"k"], "topics": ["orders"]}
    with pytest.raises(BulkWriteError) as refused:
        await Attempts(world).stored(Rows(**good), Rows(**(good | row)), topic=topic)
    assert text in str(refused.value)
    assert not world.files()


async def test_a_topic_that_is_unknown_or_deleted_is_named(world: ScanWorld) -> None:
    keys = await world.topic("orders", 1)
    attempts = Attempts(world)
    with pytest.raises(NotFoundError, match="topic does not exist: topic=ordres"):
        await attempts.stored(topic="ordres")
    files = await attempts.stored(Rows([b"v"]))
    deleted = writable_topics(await load_image(world.postgres.cluster), Settings(), ["orders"]).values()
    topic = world.view.image.topics_by_number[keys[0] >> 24]
    assert await world.postgres.topics.delete_topics(await world.postgres.cluster.metadata_head(), [topic.topic_id])
    with pytest.raises(BulkWriteError, match=r"nothing was written: .* deleted meanwhile: topic=orders partition=0"):
        await attempts.commit(0, files, topics=deleted)
    assert not await world.file_rows()


class Killed(Exception):
    """The driver is gone."""


class KillingMetastore:
    """Fault model: the driver is killed before its call number `at`, or after it, before the answer arrives."""

    def __init__(self, metastore: PostgresMetastore, at: int, *, after: bool) -> None:
        self._metastore, self._left, self._after = flat(metastore), at, after

    def __getattr__(self, name: str) -> Any:
        if name in NOUNS:
            return self

        async def call(*arguments: Any, **more: Any) -> Any:
            self._left -= 1
            if self._left < 0 and not self._after:
                raise Killed
            answer = await getattr(self._metastore, name)(*arguments, **more)
            if self._left < 0:
                raise Killed
            return answer

        return call


@pytest.mark.requirement("X6.3")
@pytest.mark.parametrize("finished_by", ["the rerun", "the next batch", "housekeeping"])
async def test_a_driver_killed_at_any_call(world: ScanWorld, finished_by: str) -> None:
    """Three chunks: staged, decided, committed one by one. Readers get one attempt of each batch, whole and once."""
    await world.topic("orders", 1)
    attempts = Attempts(world)
    expected = []
    for at in range(7):
        for after in (False, True):
            name = f"query {at} {after}"
            written = [await attempts.stored(Rows([f"{name} {run} {n}".encode()])) for run in "ab" for n in range(3)]
            first, again = ([file for files in half for file in files] for half in (written[:3], written[3:]))
            api: Any = KillingMetastore(world.postgres, at, after=after)
            killed = BulkCommit(api, BulkWrite(name, 0), attempts.clock, attempts.rng, chunk_runs=1)
            with pytest.raises(Killed):
                await killed.commit(first)
            decided = at > 3 or (at, after) == (3, True)
            if finished_by == "housekeeping":
                async with session(world.url) as connection:
                    await move_time(connection, 61)
                    while await world.postgres.housekeeping.finish_bulk_writes():
                        pass
                    await move_time(connection, 0)
            else:
                batch_id = int(finished_by == "the next batch")
                rerun = BulkCommit(
                    world.postgres, BulkWrite(name, batch_id), attempts.clock, attempts.rng, chunk_runs=1
                )
                assert await rerun.commit(again) == (batch_id == 1 or not decided)
            expected += [f"{name} a {n}".encode() for n in range(3) if decided]
            if finished_by == "the next batch" or (finished_by == "the rerun" and not decided):
                expected += [f"{name} b {n}".encode() for n in range(3)]
    assert [row.value for row in await world.consumed("orders")] == expected
    await world.check_accounts()


async def test_an_audit_between_decision_and_commit(world: ScanWorld) -> None:
    """A staged file has no extents and is no error, unless its object is gone."""
    await world.topic("orders", 1)
    attempts = Attempts(world)
    files = [file for n in range(2) for file in await attempts.stored(Rows([b"%d" % n]))]
    api: Any = KillingMetastore(world.postgres, 3, after=True)
    with pytest.raises(Killed):
        await BulkCommit(api, BulkWrite("query", 0), attempts.clock, attempts.rng, chunk_runs=1).commit(files)

    async def found() -> list[tuple[str, uuid.UUID | None]]:
        checked = await audit(world.postgres, reads_of(world.store), deep=True, on_progress=lambda *step: None)
        return [(violation.kind.name, violation.file_id) for violation in checked.violations]

    assert [row["state"] for row in (await world.file_rows()).values()].count(3) == 1
    assert await found() == []
    await world.store.delete_many([object_key(files[1].file_id)])
    assert await found() == [("MISSING", files[1].file_id)]


async def test_a_job_of_many_hours_is_committed_and_its_orphans_are_swept(world: ScanWorld) -> None:
    """Failed and speculative attempts leave objects; none is deleted before its term, all are after it."""
    await world.topic("orders", 1)
    attempts = Attempts(world)
    first, again, late = [await attempts.stored(Rows([b"v"])) for _ in range(3)]
    failed = await attempts.task(file_bytes=1)
    failed.add(Rows([b"v"]))
    failed.finish()
    failed.close()

    async def sweep(hours: float) -> None:
        async with session(world.url) as connection:
            await move_time(connection, hours * HOUR)
        await world.run_job("sweep", Sweeper(world.postgres, world.store, janitor_metrics()))

    await sweep(2.9)
    assert await attempts.commit(0, first)
    assert not await attempts.commit(0, again)
    await sweep(4.9)
    assert len(world.files()) == 4
    with pytest.raises(BulkWriteError, match="it took longer than writeTermHours"):
        await attempts.commit(1, late)
    await sweep(5.1)
    assert world.files() == {file.file_id for file in first}
    assert [row.value for row in await world.consumed("orders")] == [b"v"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"topic": ""}, "topic and writeId must have 1 to 200 characters"),
        ({"compression": "brotli"}, "compression must be one of none, gzip, snappy, lz4, zstd: 'brotli'"),
        ({"writeTermHours": "256"}, "writeTermHours must be at most 255: 256"),
        ({"writeTermHours": "0"}, "writeTermHours must be an integer of at least 1"),
        ({"fileBytes": "5"}, "fileBytes must be an integer of at least 1048576"),
        ({"topics": "x"}, "unknown option: topics (did you mean topic?)"),
        ({"subscribe": "x"}, "unknown option: subscribe"),
    ],
)
def test_a_refusal_names_the_option(options: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse_write_options(options, streaming=False)
    assert reason in str(refused.value)


def test_a_write_id_belongs_to_a_batch() -> None:
    with pytest.raises(OptionError, match="writeId is an option of a batch write only"):
        parse_write_options({"writeId": "x"}, streaming=True)
    assert parse_write_options({"WRITEID": "x", "checkpointLocation": "y"}, streaming=False).write_id == "x"
    assert all(option.meaning and option.reads in ("batch", "stream", "both") for option in WRITE_OPTIONS.values())


async def test_a_write_id_is_for_the_topics_of_one_write(world: ScanWorld) -> None:
    for topic in ("orders", "copies"):
        await world.topic(topic, 1)
    attempts = Attempts(world)
    topics = list(writable_topics(await load_image(world.postgres.cluster), Settings(), None).values())
    assert await attempts.commit(0, await attempts.stored(Rows(values=[b"a"])), topics=topics, is_named=True)
    copies = await attempts.stored(Rows(values=[b"a"]), topic="copies")
    with pytest.raises(BulkWriteError, match="committed without topic=copies: each write needs its own id"):
        await attempts.commit(0, copies, topics=topics, is_named=True)
    assert await attempts.commit(1, copies, topics=topics, is_named=True)
    assert len(await world.consumed("copies")) == 1


async def test_a_write_to_a_topic_that_grew_meanwhile_is_refused_for_now(world: ScanWorld) -> None:
    await world.topic("orders", 2)
    attempts = Attempts(world)
    topics = writable_topics(await load_image(world.postgres.cluster), Settings(), ["orders"])
    before = replace(topics["orders"], partitions=1)
    with pytest.raises(UnavailableError, match="the number of partitions changes, run it again: topic=orders"):
        await attempts.commit(0, await attempts.stored(Rows(values=[b"a"])), topics=[before])
    assert await attempts.commit(0, await attempts.stored(Rows(values=[b"a"])))
