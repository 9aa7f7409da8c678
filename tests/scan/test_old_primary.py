"""A bulk write never reports what only an old primary has: the next life begins at any point of a commit.

The bucket decides: an old primary that stays up accepts every call, and shows nothing itself. The next life begins on
another server (here only the bucket says so, and in one test there are two real servers), or on this one.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.config.settings import Settings
from headrace.metastore.life.bucket import LifeRecord, record_life
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.life.numbers import NO_LIFE
from headrace.metastore.life.verdict import LifeVerdict
from headrace.metastore.life.watch import FollowedLife
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.scan.bulk.commit import BulkCommit, BulkWrite
from headrace.scan.cluster import open_cluster
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import write_cluster_id
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from headrace.storage.objects.directory import DirectoryStore
from headrace.storage.objects.memory import MemoryStore
from load.postgres_servers import Servers
from tests.manual_clock import ManualClock
from tests.metastore.bulk_scenes import bulk_file, readable
from tests.metastore.commit_scenes import Scene, open_scene
from tests.metastore.sessions import create, new_topic, rows, session
from tests.nouns import NOUNS, flat

pytestmark = pytest.mark.requirement("W1", "X6.3")

CALLS = 5
"""Calls of a batch with two chunks: two that stage, the decision, two that commit."""
Event = Callable[[], Awaitable[None]]


class HastyClock(SystemClock):
    """Waits for nothing: a call is repeated at once."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Eventful:
    """The metastore of a driver; something happens before its `number`-th call, or after the last one."""

    def __init__(self, store: PostgresMetastore, number: int, event: Event) -> None:
        self._store, self._left, self._event = flat(store), number, event

    def __getattr__(self, name: str) -> Any:
        if name in NOUNS:
            return self

        async def call(*arguments: Any, **more: Any) -> Any:
            await self.count()
            return await getattr(self._store, name)(*arguments, **more)

        return call

    async def count(self) -> None:
        self._left -= 1
        if self._left == -1:
            await self._event()


@dataclass
class OldPrimary:
    """One server and a bucket, and what happens to it."""

    scene: Scene
    url: str

    def __post_init__(self) -> None:
        self.store, self.rng = self.scene.store, random.Random(1)
        self.bucket, self.clock = MemoryStore(ManualClock()), HastyClock()

    async def superseded(self) -> None:
        """A standby was promoted, and an agent has begun its life: only the bucket says so."""
        found = await self.store.life.describe_life()
        for life in (found.life, found.life + 1):
            await record_life(self.bucket, _record(found, life))

    async def replaced(self) -> None:
        """The address leads to the next life, which lost the decision; the driver's connections follow it."""
        await LifeKeeper(self.store.life, self.bucket, self.clock, random.Random(2)).begin_anew("restored")
        async with session(self.url) as raw:
            await raw.execute("DELETE FROM bulk_writes")
        await self.life.keeper.check()

    async def write(self, number: int, event: Event) -> bool:
        """Two chunks; the event is before the `number`-th call, counted from zero. With the number of all calls: after
        the last one, before the driver reports.
        """
        now_ms = await self.store.commits.database_ms()
        files = [bulk_file(now_ms, self.rng, self.scene.keys) for _ in range(2)]
        self.life = FollowedLife(self.store.life, self.bucket, self.clock, self.rng)
        assert await self.life.require_current() == self.store.life.named_life
        api: Any = Eventful(self.store, number, event)
        commit = BulkCommit(
            api,
            BulkWrite(f"query/{uuid.UUID(int=self.rng.getrandbits(128))}", 0),
            self.clock,
            self.rng,
            life=self.life,
            chunk_runs=1,
        )
        confirm = commit._confirm

        async def confirmed(begun_in: int | None) -> None:
            await api.count()
            await confirm(begun_in)

        commit._confirm = confirmed  # type: ignore[method-assign]
        return await commit.commit(files)

    async def decided(self) -> int:
        async with session(self.url) as raw:
            return len(await rows(raw, "SELECT FROM bulk_writes"))

    async def never_reports(self, event: Event) -> None:
        """Whenever it happens, the driver gets an error; before the decision, nothing is decided."""
        for number in range(1, CALLS + 1):
            self.bucket, before = MemoryStore(ManualClock()), await self.decided()
            with pytest.raises(UnavailableError if number == 1 else (UnavailableError, OutcomeUnknownError)):
                await self.write(number, event)
            if number == 1:  # while it stages
                assert await self.decided() == (before if event == self.superseded else 0)
            self.store.life.name_life((await self.store.life.describe_life()).life)


def _record(found: Any, life: int) -> LifeRecord:
    return LifeRecord(
        cluster_id=found.cluster_id,
        life=life,
        incarnation_id=found.incarnation_id if life == found.life else uuid.UUID(int=life),
        system_identifier=found.server.system_identifier,
        timeline=found.server.timeline + life - found.life,
        reason="promoted",
        begun_ms=0,
        wal_bytes=0,
        feed_sum=0,
    )


@pytest.fixture
async def old(metastore: PostgresMetastore, metastore_url: str) -> OldPrimary:
    return OldPrimary(await open_scene(metastore), metastore_url)


async def test_a_batch_is_written_in_the_life_that_the_bucket_names(old: OldPrimary) -> None:
    assert await old.write(99, old.superseded)
    async with session(old.url) as raw:
        assert len(await readable(raw)) == 2


async def test_a_driver_is_never_told_that_a_batch_is_on_an_old_primary(old: OldPrimary) -> None:
    await old.never_reports(old.superseded)


async def test_a_driver_that_reaches_the_next_life_is_not_told_that_its_lost_batch_is_written(old: OldPrimary) -> None:
    """A chunk of a decision that is gone looks complete: so the number of the life is compared, too."""
    await old.never_reports(old.replaced)


async def _nothing(self: BulkCommit, begun_in: int | None) -> None: ...


async def _verdict_only(self: BulkCommit, begun_in: int | None) -> None:
    assert self._life is not None
    await self._life.require_current()


BUGS: dict[str, tuple[str, Callable[..., Awaitable[None]], str]] = {
    "a batch is reported without another look at the bucket": ("_confirm", _nothing, "superseded"),
    "only the open connection is compared, before the decision": ("_require", _nothing, "superseded"),
    "any life will do": ("_require", _verdict_only, "replaced"),
}


@pytest.mark.parametrize("bug", BUGS)
async def test_a_planted_bug_in_the_commit_is_caught(
    old: OldPrimary, bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, wrong, event = BUGS[bug]
    monkeypatch.setattr(BulkCommit, name, wrong)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await old.never_reports(getattr(old, event))


async def test_a_driver_that_reaches_the_old_primary_after_a_promotion_writes_nothing(
    servers: Servers, tmp_path: Path
) -> None:
    """Two real servers: the standby lost what came after the cut; the primary stays up, and its address is the
    driver's.
    """
    store, rng = DirectoryStore(tmp_path / "bucket", SystemClock()), random.Random(1)

    def settings(server: str) -> Settings:
        return Settings(metastore_url=servers.url(server), bucket=(tmp_path / "bucket").as_uri())

    agents = {"primary": await PostgresMetastore.open(servers.url("primary"), Settings(metastore_pool_size=1))}
    await write_cluster_id(store, agents["primary"].cluster_id)
    assert await LifeKeeper(agents["primary"].life, store, SystemClock(), rng).check() is LifeVerdict.CURRENT
    image = await create(agents["primary"], new_topic("orders"))
    key = image.topics_by_name["orders"].key(0)
    assert key is not None
    await asyncio.to_thread(servers.add_standby, "standby")
    await asyncio.to_thread(servers.cut, "standby")

    async def commit(cluster: Any) -> bool:
        files = [bulk_file(await cluster.metastore.commits.database_ms(), rng, [key])]
        given = (cluster.metastore, BulkWrite("query/1", 0), HastyClock(), rng)
        return await BulkCommit(*given, bucket=cluster.store, life=cluster.life).commit(files)

    try:
        async with open_cluster(settings("primary")) as early:
            await asyncio.to_thread(servers.promote, "standby")
            agents["standby"] = await PostgresMetastore.open(servers.url("standby"), Settings(metastore_pool_size=1))
            with pytest.raises(UnavailableError, match="no agent has begun its life yet"):
                async with open_cluster(settings("standby")):
                    pass
            assert await LifeKeeper(agents["standby"].life, store, SystemClock(), rng).check() is LifeVerdict.CURRENT
            with pytest.raises(UnavailableError, match=r"another server is the metastore|another life"):
                await commit(early)
            assert early.metastore.life.named_life == NO_LIFE
        with pytest.raises(UnavailableError, match="another server is the metastore"):
            async with open_cluster(settings("primary")):
                pass
        async with open_cluster(settings("standby")) as moved:
            assert await commit(moved)
        for server, files in (("primary", 0), ("standby", 1)):
            async with session(servers.url(server)) as raw:
                assert len(await readable(raw)) == files
    finally:
        for each in agents.values():
            await each.close()
