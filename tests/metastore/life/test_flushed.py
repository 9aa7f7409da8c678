"""What is noted of a server's position survives an ordinary crash of the server; a restore is still noticed.

The property tries all ways in which a server inserts, flushes and loses WAL. The crash is one of a real server.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import msgspec
import psycopg
import pytest

from headrace.config.settings import Settings
from headrace.metastore.api.life import ServerLife
from headrace.metastore.life.bucket import PREFIX, Position, newest_life, read_position
from headrace.metastore.life.keeper import FlushedPosition, LifeKeeper
from headrace.metastore.life.verdict import LifeVerdict, judge
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.objects.memory import MemoryStore
from load.postgres_servers import Servers, run
from tests.manual_clock import ManualClock
from tests.metastore.life.test_verdict import PRIMARY, RECORD
from tests.metastore.sessions import create, new_topic

SEEDS = 300
STEPS = 40


class Wal:
    """A server that shows rows before it flushes them, as with synchronous_commit=off."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._inserted = [(0, 0, 0)]
        self._flushed = 0

    def write(self) -> None:
        wal, feed, head = self._inserted[-1]
        self._inserted.append(
            (wal + self._rng.randint(1, 9), feed + self._rng.randint(0, 1), head + self._rng.randint(0, 1))
        )

    def flush(self) -> None:
        self._flushed = self._rng.randint(self._flushed, len(self._inserted) - 1)

    def crash(self) -> None:
        del self._inserted[self._flushed + 1 :]

    def describe(self) -> ServerLife:
        wal, feed, head = self._inserted[-1]
        flushed = self._inserted[self._flushed][0]
        return replace(PRIMARY, wal_bytes=wal, feed_sum=feed, metadata_head=head, flushed_bytes=flushed)


def verdicts(seed: int, taken_by: type[FlushedPosition]) -> set[LifeVerdict]:
    """Return what one process judges of a server that is never restored, while it writes, flushes and crashes."""
    rng = random.Random(seed)
    wal, position, found = Wal(rng), taken_by(), set()
    for _ in range(STEPS):
        rng.choice((wal.write, wal.write, wal.flush, wal.crash))()
        if rng.random() < 0.5:
            verdict = judge(wal.describe(), RECORD, position.newest)
            found.add(verdict)
            if verdict is LifeVerdict.CURRENT:
                position.take(wal.describe())
    return found


class Inserted(FlushedPosition):
    """A planted bug: what is inserted is noted."""

    def take(self, found: ServerLife) -> None:
        self.newest = Position.of(found)


class Kept(FlushedPosition):
    """A planted bug: a reading waits on through a crash, and is noted when other WAL reached its position."""

    def take(self, found: ServerLife) -> None:
        waiting = self._waiting or Position.of(found)
        if waiting.wal_bytes <= found.flushed_bytes:
            self.newest, waiting = waiting, Position.of(found)
        self._waiting = waiting


@pytest.mark.requirement("W1", "W7")
def test_no_crash_is_taken_for_a_restore() -> None:
    assert all(verdicts(seed, FlushedPosition) == {LifeVerdict.CURRENT} for seed in range(SEEDS))


@pytest.mark.parametrize("bug", [Inserted, Kept])
def test_a_planted_bug_takes_a_crash_for_a_restore(bug: type[FlushedPosition]) -> None:
    assert any(LifeVerdict.RESTORED in verdicts(seed, bug) for seed in range(SEEDS))


def test_all_that_is_flushed_is_noted_one_check_later() -> None:
    """On a server that never flushes all that it inserted, too: a copy of an earlier state is noticed."""
    position = FlushedPosition()
    for wal in range(1_000, 2_000, 100):
        position.take(replace(PRIMARY, wal_bytes=wal, feed_sum=wal, flushed_bytes=wal - 50))
    assert position.newest is not None
    assert position.newest.wal_bytes == position.newest.feed_sum == 1_800
    idle = replace(PRIMARY, wal_bytes=2_000, feed_sum=2_000, flushed_bytes=2_000)
    position.take(idle)
    assert position.newest == Position.of(idle)


@pytest.mark.xdist_group("postgres servers")
@pytest.mark.requirement("W1", "W7")
async def test_a_server_that_crashes_with_unflushed_wal_goes_on(prepared_primary: Path | None) -> None:
    bucket = MemoryStore(ManualClock())
    with Servers(prepared=prepared_primary) as servers:
        run(servers.url("primary"), "ALTER SYSTEM SET wal_writer_delay = '10s'")
        run(servers.url("primary"), "SELECT pg_reload_conf()")
        metastore, running = await _process(servers, bucket)
        assert await running.check() is LifeVerdict.CURRENT
        large = await psycopg.AsyncConnection.connect(servers.url("primary"))
        await large.execute("SELECT pg_logical_emit_message(true, 'rows', repeat('x', 300000))")
        found = await metastore.life.describe_life()
        assert found.wal_bytes - found.flushed_bytes > 200_000
        assert await running.check() is LifeVerdict.CURRENT
        await running.note_position()
        await metastore.close()
        servers.kill("primary")
        with pytest.raises(psycopg.OperationalError):
            await large.commit()
        await asyncio.to_thread(servers.start, "primary")
        metastore, starting = await _process(servers, bucket)
        assert (await metastore.life.describe_life()).wal_bytes < found.wal_bytes, "the crash lost WAL"
        assert await starting.check() is LifeVerdict.CURRENT, "by the bucket"
        running._api = metastore.life
        assert await running.check() is LifeVerdict.CURRENT, "by its own memory"
        await create(metastore, new_topic("written"))
        await metastore.close()


@pytest.mark.requirement("W1")
async def test_what_an_agent_of_the_release_before_notes_is_no_proof(metastore: PostgresMetastore) -> None:
    bucket = MemoryStore(ManualClock())
    keeper = LifeKeeper(metastore.life, bucket, ManualClock(), random.Random(1))
    await keeper.check()
    found = await metastore.life.describe_life()
    key = f"{PREFIX}{found.life:010}.position.json"
    inserted = {
        "life": found.life,
        "timeline": found.server.timeline,
        "wal_bytes": found.wal_bytes + 1_000_000,  # lost by a crash
        "feed_sum": found.feed_sum,
        "metadata_head": found.metadata_head,
    }
    await bucket.put(key, msgspec.json.encode(inserted))
    assert await read_position(bucket, found.life) is None
    fresh = LifeKeeper(metastore.life, bucket, ManualClock(), random.Random(2))
    assert await fresh.check() is LifeVerdict.CURRENT
    while fresh._reached.newest is None:
        await fresh.check()
    await fresh.note_position()
    noted = msgspec.json.decode(await bucket.get(key))
    assert set(inserted) < set(noted), "an agent of the release before reads these fields"
    assert noted["wal_bytes"] <= (await metastore.life.describe_life()).flushed_bytes
    assert await read_position(bucket, found.life) is not None


async def test_the_record_of_a_life_has_what_was_flushed(
    metastore: PostgresMetastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = MemoryStore(ManualClock())
    asked = await metastore.life.describe_life()
    found = replace(asked, begun_on=asked.server, wal_bytes=1 << 50)

    async def describe_life() -> ServerLife:
        return found

    monkeypatch.setattr(metastore.life, "describe_life", describe_life)
    assert await LifeKeeper(metastore.life, bucket, ManualClock(), random.Random(1)).check() is LifeVerdict.CURRENT
    record = await newest_life(bucket, None)
    assert record is not None
    assert (record.wal_bytes, record.feed_sum) == (0, 0)


async def _process(servers: Servers, bucket: MemoryStore) -> tuple[PostgresMetastore, LifeKeeper]:
    metastore = await PostgresMetastore.open(servers.url("primary"), Settings(metastore_pool_size=2))
    return metastore, LifeKeeper(metastore.life, bucket, ManualClock(), random.Random(1))
