"""The doctor on streams groups that coordinators stored: without their topics, and asked to stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headrace.agent.groups.streams.topology import Topology
from headrace.cli.doctor import streams
from headrace.config.settings import Settings
from headrace.metastore.api.groups import GroupKind, GroupRecord
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from tests.agent.groups.streams.streams_world import COUNT, World, sub, topology
from tests.cli.doctor.world import Line, examined_cluster, lines
from tests.metastore.sessions import create, join, new_topic

pytestmark = pytest.mark.requirement("X16")
APART = topology(sub("0", ["words", "other"], together=[((0, 1), ())]))
LARGE = topology(*(sub(str(at), ["words"]) for at in range(10_001)))
MAPPED = topology(sub("0", ["words"]))


class Meanwhile(SystemClock):
    """A clock that does something while the doctor waits, and wakes it at once."""

    def __init__(self, do: Callable[[], Awaitable[object]] | None = None) -> None:
        self._do, self.waited = do, 0.0

    async def sleep(self, seconds: float) -> None:
        self.waited += seconds
        if self._do is not None:
            await self._do()


async def _store(metastore: PostgresMetastore, group_id: str, record: GroupRecord | None) -> None:
    claim = await metastore.groups.claim_group(group_id, *await join(metastore))
    assert claim is not None
    assert record is not None
    await metastore.groups.save_group(group_id, claim.coordinator_epoch, record)


async def _examined(metastore: PostgresMetastore, clock: Meanwhile) -> dict[str, Line]:
    return lines(await streams.examine(metastore, await load_image(metastore.cluster), clock))


@pytest.mark.parametrize(
    ("plan", "told", "to_do", "waited"),
    [
        (topology(sub("0", ["none"])), "Source topics none are missing.", "create the topics", 0),
        (APART, "do not have the same number of partitions: [{other=3, words=2}]", "equal counts", 0),
        (COUNT, "Internal topics are missing: ", "needs CREATE", streams.LOOK_AGAIN_SECONDS),
        (LARGE, "more than 20000 tasks", "application.id", 0),
    ],
    ids=["source topics", "counts", "internal topics", "tasks"],
)
async def test_a_streams_group_without_its_topics(
    metastore: PostgresMetastore, plan: Topology, told: str, to_do: str, waited: float
) -> None:
    world, clock = World(words=1), Meanwhile()
    world.join("a", plan)
    await create(metastore, new_topic("words", 2), new_topic("other", 3))
    await _store(metastore, "app", world.durable)
    level, found, what = (await _examined(metastore, clock))["topics"]
    assert (level, found.startswith("1 groups run no tasks, first app: "), told in found) == ("warn", True, True), found
    assert to_do in str(what)
    assert clock.waited == waited


async def test_internal_topics_that_are_being_created_are_no_fault(metastore: PostgresMetastore) -> None:
    world = World(words=2)
    world.join("a")
    await create(metastore, new_topic("words", 2))
    await _store(metastore, "app", world.durable)
    clock = Meanwhile(lambda: create(metastore, new_topic("by-word", 2), new_topic("counts", 2)))
    assert (await _examined(metastore, clock))["groups"][0] == "ok"
    assert clock.waited == streams.LOOK_AGAIN_SECONDS


async def test_a_member_that_asked_all_to_stop(metastore_url: str, metastore: PostgresMetastore) -> None:
    world = World(words=2)
    world.join("a", MAPPED)
    world.join("b", MAPPED)
    await create(metastore, new_topic("words", 2))
    await _store(metastore, "app", world.durable)
    sound = (await examined_cluster(Settings(metastore_url=metastore_url)))["groups"]
    assert sound[:2] == ("ok", "1 groups with threads have all their topics")
    world.beat("a", 2, shuts_down=True)
    await _store(metastore, "other", world.durable)
    level, found, to_do = (await _examined(metastore, Meanwhile()))["stop"]
    assert (level, "first other: 2 threads" in found) == ("warn", True), found
    assert "end the processes that are left" in str(to_do)


async def test_streams_groups_without_members_and_of_a_newer_release(metastore: PostgresMetastore) -> None:
    world = World(words=2)
    world.join("a", topology(sub("0", ["none"])))
    world.beat("a", -1)
    await _store(metastore, "empty", world.durable)
    assert await _examined(metastore, Meanwhile()) == {}
    await _store(metastore, "newer", GroupRecord(GroupKind.STREAMS, "Stable", "streams", (), b"\xc1"))
    level, found, _ = (await _examined(metastore, Meanwhile()))["groups"]
    assert (level, "1 groups were not read, first newer" in found) == ("unknown", True), found
