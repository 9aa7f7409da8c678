"""An index made again from the bucket alone: what was acknowledged is there once, in order, where it was."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from headrace.cli.main import main
from headrace.compactor.audit import Kind, audit
from headrace.compactor.rebuild import LOST, Rebuilt, rebuild_index
from headrace.config.settings import Settings
from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import write_cluster_id
from headrace.storage.errors import InvalidError
from headrace.storage.file_id import level_of, object_key
from headrace.storage.objects.directory import DirectoryStore
from headrace.storage.objects.store import ByteRange
from headrace.storage.records.codec import Record, decode_records, encode_batch
from headrace.storage.records.header import read_header
from headrace.storage.segment.reader import walk_batches
from tests.agent.fetch.fetch_world import NEVER_SEEN
from tests.compactor.world import CompactionWorld
from tests.metastore.sessions import session
from tests.seeds import seeds
from tests.storage.altered_reads import reads_of
from tests.storage.batches import BASE_TIME_MS, forge, plain_batch


class Read(NamedTuple):
    offset: int
    value: bytes
    is_merged: bool


class Lost:
    """The bucket of a world with a lost metastore, and a new one."""

    def __init__(self, world: CompactionWorld, metastore: PostgresMetastore) -> None:
        self.world, self.metastore = world, metastore

    async def rebuild(self) -> Rebuilt:
        """Also: the audit has nothing to say of it."""
        keeper = LifeKeeper(self.metastore.life, self.world.store, SystemClock(), random.Random(1))
        found = await rebuild_index(self.metastore, reads_of(self.world.store), keeper, lambda *_: None)
        checked = await audit(self.metastore, reads_of(self.world.store), deep=True, on_progress=lambda *_: None)
        assert [v for v in checked.violations if v.kind is not Kind.UNNAMED] == []
        return found

    async def keys(self) -> list[int]:
        """Return the keys of the only topic."""
        (topic,) = (await load_image(self.metastore.cluster)).topics_by_name.values()
        return [key for index in range(2) if (key := topic.key(index)) is not None]


async def read_all(world: CompactionWorld, metastore: PostgresMetastore, key: int) -> list[Read]:
    """Every readable record of a partition."""
    (answer,) = await metastore.index.find_extents([ExtentQuery(key, 0, 1 << 40)])
    found = []
    for extent in answer.extents:
        data = await world.store.get(object_key(extent.file_id), ByteRange(extent.position, extent.length))
        offset = extent.base_offset
        for position, header in walk_batches(data):
            for record in decode_records(memoryview(data)[position : position + header.size]):
                at = offset + record.offset - header.base_offset
                if at >= answer.log_start_offset:
                    found.append(Read(at, record.value or b"", level_of(extent.file_id) > 0))
            offset += header.last_offset_delta + 1
        assert offset == extent.last_offset + 1
    return found


@pytest.fixture
async def lost(world: CompactionWorld, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lost]:
    """Files of this world are created a millisecond apart, as its commits are."""
    births = count(time.time_ns() // 1_000_000 - 60_000)
    monkeypatch.setattr(world.service, "database_now_ms", lambda: next(births))
    url = world.url.replace("/test_", "/rebuilt_")
    name = url.rsplit("/", 1)[1].split("?")[0]
    async with session(world.url) as raw:
        await raw.execute(f"DROP DATABASE IF EXISTS {name}".encode())
        await raw.execute(f"CREATE DATABASE {name}".encode())
    migrate(url, cluster_id=world.postgres.cluster_id)
    metastore = await PostgresMetastore.open(url, Settings(metastore_pool_size=2))
    yield Lost(world, metastore)
    await metastore.close()
    async with session(world.url) as raw:
        await raw.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


async def fill(world: CompactionWorld, files: int) -> list[int]:
    """Files of two partitions with dead batches between the live ones; their partition keys."""
    a, b = await world.topic("t", 2)
    for n in range(files):
        dead = plain_batch(2, b"dead" * 20, **NEVER_SEEN)
        await world.commit((a, plain_batch(3, b"a%d" % n * 20)), (a, dead), (a, plain_batch(1)), (b, plain_batch(2)))
    return [a, b]


async def test_a_bucket_alone_gives_every_run_back(world: CompactionWorld, lost: Lost) -> None:
    await fill(world, files=70)
    await world.store.put(object_key(uuid.UUID(int=1 << 80)), b"no segment file")
    before = (await lost.metastore.files.janitor_state()).incarnation_id
    found = await lost.rebuild()
    assert (found.files, found.extents, len(found.unsound), found.homeless) == (70, 209, 1, 0)
    image = await load_image(lost.metastore.cluster)
    (topic,) = image.topics_by_name.values()
    assert topic.name == found.topics[0] == f"recovered-{topic.topic_id}"
    answers = await lost.metastore.index.find_extents([ExtentQuery(key, 0, 1 << 40) for key in await lost.keys()])
    # per file: 3 + 1 live records and 2 that the commit had dropped, in one run; and 2 of the other partition.
    # The dead ones carry the sequence numbers of an idempotent producer, each time the same: they are placed once.
    assert [(a.log_start_offset, a.high_watermark) for a in answers] == [(0, 70 * 4 + 2), (0, 140)]
    assert (found.records, found.guessed_records) == (70 * 4 + 2 + 140,) * 2
    assert (await lost.metastore.files.janitor_state()).incarnation_id != before
    with pytest.raises(InvalidError):
        await lost.rebuild()


async def test_a_topic_that_is_there_keeps_its_name(world: CompactionWorld) -> None:
    """As after a restore of an older backup without its files: names and counts are the metastore's."""
    await fill(world, files=3)
    async with session(world.url) as raw:
        await raw.execute("TRUNCATE segment_files, extents")
        await raw.execute("UPDATE partition_heads SET high_watermark = 0, appended_bytes = 0")
    keeper = LifeKeeper(world.postgres.life, world.store, SystemClock(), random.Random(1))
    found = await rebuild_index(world.postgres, reads_of(world.store), keeper, lambda *_: None)
    assert (found.files, found.topics) == (3, [])
    await world.check_accounts()


async def test_every_level_in_the_bucket_is_no_third_copy(world: CompactionWorld, lost: Lost) -> None:
    """As a cluster's bucket looks before anything was deleted."""
    keys = await world.topic("t", 2)
    for n in range(6):
        await world.commit(*((key, plain_batch(3, b"%d" % n)) for key in keys for _ in range(2)))
    before = [await read_all(world, world.postgres, key) for key in keys]
    for level in (1, 2):
        await world.compact(level)
    found = await lost.rebuild()
    assert [[r[:2] for r in await read_all(world, lost.metastore, key)] for key in await lost.keys()] == [
        [read[:2] for read in partition] for partition in before
    ]
    assert (found.files, found.guessed_records, found.records, found.repeated_batches) == (8, 0, 72, 24)
    rows = [(row.level, row.live_bytes > 0) for row in await lost.metastore.reports.audit_files(uuid.UUID(int=0), 100)]
    assert sorted(rows) == [(0, False)] * 6 + [(1, False), (2, True)]


async def test_what_a_commit_had_dropped_is_behind_all_others_but_hides_none(
    world: CompactionWorld, lost: Lost
) -> None:
    """A repetition is recognised by its producer's numbers; files do not show other refusals."""
    (key,) = await world.topic("t", 1)
    sent = forge(plain_batch(2, b"sent"), producer_id=7, producer_epoch=0, base_sequence=0)
    await world.commit((key, plain_batch(1, b"a")), (key, sent))
    await world.commit((key, plain_batch(1, b"b")), (key, plain_batch(1, b"dead", **NEVER_SEEN)))
    old = await world.live_files()
    await world.compact(1)
    await world.store.delete_many([object_key(old[0])])
    await world.commit((key, plain_batch(1, b"c")), (key, sent), (key, plain_batch(1, b"d")))
    await lost.rebuild()
    (new_key,) = await lost.keys()
    values = [read.value for read in await read_all(world, lost.metastore, new_key)]
    assert values == [b"a", b"sent", b"sent", b"b", b"dead", b"c", b"d"]


async def test_records_that_a_merge_opened_are_recognised_one_by_one(world: CompactionWorld, lost: Lost) -> None:
    """Nothing in between that held the batches as they were sent."""
    (key,) = await world.topic("t", 1)
    for n in range(5):
        await world.commit((key, plain_batch(3, b"%d" % n)), (key, plain_batch(2, b"%d" % n)))
    before = [read[:2] for read in await read_all(world, world.postgres, key)]
    await world.compact(2)
    found = await lost.rebuild()
    (new_key,) = await lost.keys()
    assert [read[:2] for read in await read_all(world, lost.metastore, new_key)] == before
    assert (found.guessed_records, found.repeated_batches) == (0, 10)


async def test_what_is_not_merged_fills_the_gap_that_it_left(world: CompactionWorld, lost: Lost) -> None:
    (key,) = await world.topic("t", 1)
    for n in range(9):
        await world.commit((key, plain_batch(2 + n % 2, b"%d" % n, base_timestamp=BASE_TIME_MS + 10 * n)))
    files = await world.live_files()
    before = [read[:2] for read in await read_all(world, world.postgres, key)]
    for chosen in (files[:3], files[5:7]):
        await world.run(await world.claim(chosen, 1))
        await world.store.delete_many([object_key(file_id) for file_id in chosen])
    await lost.rebuild()
    (new_key,) = await lost.keys()
    assert [read[:2] for read in await read_all(world, lost.metastore, new_key)] == before


async def test_log_starts_are_where_the_first_record_is(world: CompactionWorld, lost: Lost) -> None:
    """The objects of what retention removed are gone; what is merged keeps its offsets."""
    (key,) = await world.topic("t", 1)
    for n in range(6):
        await world.commit((key, plain_batch(3, b"%d" % n)))
    old = await world.live_files()
    await world.postgres.retention.move_log_starts([LogStartTarget(key, 9)], max_extents=100)
    await world.compact(1)
    await world.store.delete_many([object_key(file_id) for file_id in old])
    before = [read[:2] for read in await read_all(world, world.postgres, key)]
    await lost.rebuild()
    (new_key,) = await lost.keys()
    (answer,) = await lost.metastore.index.find_extents([ExtentQuery(new_key, 0, 1 << 40)])
    assert (answer.log_start_offset, answer.high_watermark) == (9, 18)
    assert [read[:2] for read in await read_all(world, lost.metastore, new_key)] == before


def is_idempotent(batch: bytes) -> bool:
    return read_header(batch).producer_id >= 0


class History:
    """A cluster's life as a seed has it; every value is sent once, later ones with later times."""

    def __init__(self, world: CompactionWorld, seed: int) -> None:
        self.world, self.rng = world, random.Random(seed)
        self._sent = count()
        self.undecided: set[bytes] = set()
        """Values in transactional batches; the bucket does not know how their transactions ended."""
        self._retried: list[tuple[int, bytes]] = []

    async def run(self, keys: Sequence[int], steps: int) -> None:
        for _ in range(steps):
            await self.produce(keys)
            event = self.rng.random()
            if event < 0.5:
                await self.merge(self.rng.choice((1, 1, 2)))
            elif event < 0.7:
                await self.delete_dead_files()
            elif event < 0.8:
                await self.delete_records(self.rng.choice(keys))

    async def produce(self, keys: Sequence[int]) -> None:
        for _ in range(self.rng.randint(1, 3)):
            chosen = sorted(self.rng.choices(keys, k=self.rng.randint(1, 4)))
            batches = [(key, self._batch()) for key in chosen]
            self._retried += [sent for sent in batches if is_idempotent(sent[1]) and self.rng.random() < 0.5]
            again = self.rng.sample(self._retried, min(len(self._retried), self.rng.randint(0, 2)))
            await self.world.commit(*sorted(batches + again, key=lambda sent: sent[0]))

    async def merge(self, level: int) -> None:
        """Some neighbours in age, as the policy picks them; a worker may crash before it has swapped all of it in."""
        below = await self.world.live_files(level - 1)
        if below:
            first = self.rng.randrange(len(below))
            await self.world.run(await self.world.claim(below[first : first + self.rng.randint(1, 6)], level))

    async def delete_dead_files(self) -> None:
        """The oldest first, as they became dead."""
        rows = await self.world.file_rows()
        dead = sorted((row["dead_at"], file_id) for file_id, row in rows.items() if row["dead_at"] is not None)
        gone = [object_key(file_id) for _, file_id in dead[: self.rng.randint(0, len(dead))]]
        await self.world.store.delete_many(gone)

    async def delete_records(self, key: int) -> None:
        (answer,) = await self.world.postgres.index.find_extents([ExtentQuery(key, 0, 1 << 40)])
        target = self.rng.randint(answer.log_start_offset, (answer.log_start_offset + answer.high_watermark) // 2)
        await self.world.postgres.retention.move_log_starts([LogStartTarget(key, target)], max_extents=100)

    def _batch(self) -> bytes:
        """Now and then one that may be repeated, or one that a merge has to leave as it is."""
        values = [b"%d" % next(self._sent) for _ in range(self.rng.randint(1, 4))]
        records = [Record(i, 1_000_000 + int(value), None, value) for i, value in enumerate(values)]
        data = encode_batch(records, base_offset=0)
        kind = self.rng.random()
        if kind < 0.2:  # the first batch of an idempotent producer
            return forge(data, producer_id=int(values[0]), producer_epoch=0, base_sequence=0)
        if kind > 0.9:
            self.undecided.update(values)
            return forge(data, attributes=0x10)
        return data


@pytest.mark.parametrize("seed", seeds(range(3), range(3, 12)))
async def test_after_any_history(world: CompactionWorld, lost: Lost, seed: int) -> None:
    """Every readable record that the bucket holds is there once, in its old order, where a merged file says it was.

    But for those of transactions with an unknown end.
    """
    keys = await world.topic("t", 2)
    history = History(world, seed)
    await history.run(keys, 12)
    await lost.rebuild()
    for key, new_key in zip(keys, await lost.keys(), strict=True):
        before = [r for r in await read_all(world, world.postgres, key) if r.value not in history.undecided]
        after = await read_all(world, lost.metastore, new_key)
        offsets = {read.value: read.offset for read in after}
        assert len(offsets) == len(after), "twice"
        assert not history.undecided & offsets.keys(), "a transaction that may be aborted"
        assert [read.value for read in after if read.value in {r.value for r in before}] == [r.value for r in before]
        assert {r.value: offsets[r.value] for r in before if r.is_merged} == {
            r.value: r.offset for r in before if r.is_merged
        }


def test_the_command_says_what_it_guessed_and_what_is_lost(
    metastore_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = tmp_path / "bucket"
    command = ["audit", "--rebuild-index", f"--metastore-url={metastore_url}", f"--bucket=file://{bucket}"]

    async def prepare() -> None:
        metastore = await PostgresMetastore.open(metastore_url, Settings(metastore_pool_size=1))
        await write_cluster_id(DirectoryStore(bucket, SystemClock()), metastore.cluster_id)
        await metastore.close()

    asyncio.run(prepare())
    assert main([*command, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["records"], shown["guessed_records"], len(shown["lost"])) == (0, 0, len(LOST))
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "with estimated offsets: 0" in out
    assert all(line in out for line in LOST)
