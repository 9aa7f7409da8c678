"""Share groups of GroupApi in Postgres and in the fake that the agent's tests use: fenced writes, and rows that end
with what they are of.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headrace.metastore.api.groups import (
    GroupApi,
    GroupKind,
    GroupRecord,
    LoadedSharePartition,
    ShareState,
    StoredSharePartition,
    StoredShareState,
)
from headrace.metastore.life.numbers import NUMBER_BITS
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.share_states import GroupProgress
from headrace.storage.errors import FencedError
from tests.agent.groups.fake_group_api import FakeGroupApi
from tests.contracts.test_groups_contract import GroupsUnderTest, InFake, InPostgres, claimed
from tests.metastore.commit_scenes import open_scene
from tests.metastore.sessions import session

MEMBERS = GroupRecord(GroupKind.SHARE, "Stable", "share", ("events",), b"members")
EMPTY = MEMBERS._replace(state="Empty")
Write = Callable[[GroupApi, int, int], Awaitable[object]]
WRITES: list[Write] = [
    lambda api, epoch, key: api.store_share_partitions("g", epoch, 1, [StoredSharePartition(key, 9, b"late")]),
    lambda api, epoch, key: api.delete_offsets("g", epoch, [key]),
]


@pytest.fixture(params=["postgres", "fake"])
def groups(request: pytest.FixtureRequest) -> GroupsUnderTest:
    if request.param == "fake":
        return InFake()
    return InPostgres(request.getfixturevalue("metastore"))


async def stored(api: GroupApi, group_id: str = "g") -> list[tuple[int, int, bytes]]:
    """Rows without their high watermarks."""
    return [row[:3] for row in await api.load_share_partitions(group_id)]


@pytest.mark.requirement("X12")
async def test_the_last_state_of_each_partition_is_kept(groups: GroupsUnderTest) -> None:
    api, epoch, keys = groups.api, await claimed(groups, await groups.agent()), await groups.partitions(3)
    rows = [StoredSharePartition(key, 5, b"kept") for key in reversed(keys)]
    assert await api.store_share_partitions("g", epoch, 1, rows) == [True, True, True]
    assert await api.store_share_partitions("g", epoch, 2, [StoredSharePartition(keys[1], 6, b"")]) == [True]
    assert await stored(api) == [(keys[0], 5, b"kept"), (keys[1], 6, b""), (keys[2], 5, b"kept")]
    assert await stored(api, "other") == []


@pytest.mark.requirement("X12")
@pytest.mark.parametrize("operation", WRITES)
async def test_a_stale_coordinator_changes_nothing(groups: GroupsUnderTest, operation: Write) -> None:
    api, agent, (key,) = groups.api, await groups.agent(), await groups.partitions(1)
    stale = await claimed(groups, agent)
    epoch = await claimed(groups, agent)
    await api.store_share_partitions("g", epoch, 1, [StoredSharePartition(key, 3, b"now")])
    with pytest.raises(FencedError):
        await operation(api, stale, key)
    assert await stored(api) == [(key, 3, b"now")]


async def test_a_deleted_partition_takes_its_row_along(groups: GroupsUnderTest) -> None:
    api, epoch, (key,) = groups.api, await claimed(groups, await groups.agent()), await groups.partitions(1)
    await api.store_share_partitions("g", epoch, 1, [StoredSharePartition(key, 3, b"")])
    await groups.delete_topic()
    assert await stored(api) == []
    assert await api.store_share_partitions("g", epoch, 1, [StoredSharePartition(key, 4, b"")]) == [False]


async def test_a_deleted_group_takes_its_rows_along(groups: GroupsUnderTest) -> None:
    api, agent, keys = groups.api, await groups.agent(), await groups.partitions(2)
    epoch = await claimed(groups, agent)
    await api.store_share_partitions("g", epoch, 1, [StoredSharePartition(key, 3, b"") for key in keys])
    assert await api.delete_group("g", epoch)
    assert await stored(api) == []


async def test_a_group_without_members_stays_until_it_is_deleted(groups: GroupsUnderTest) -> None:
    api, agent, keys = groups.api, await groups.agent(), await groups.partitions(2)
    epoch = await claimed(groups, agent)
    await api.save_group("g", epoch, EMPTY)
    await api.store_share_partitions("g", epoch, 1, [StoredSharePartition(key, 3, b"") for key in keys])
    await api.release_groups({"g": epoch})
    assert len(await stored(api)) == 2
    assert [each.kind for each in await api.list_groups()] == [GroupKind.SHARE]
    epoch = await claimed(groups, agent)
    for _ in range(2):
        await api.delete_offsets("g", epoch, keys)
    await api.release_groups({"g": epoch})
    assert [each.kind for each in await api.list_groups()] == [GroupKind.SHARE]
    assert await api.delete_group("g", await claimed(groups, agent))
    assert await api.list_groups() == []


async def test_rows_come_with_the_high_watermark_of_the_same_snapshot(metastore: PostgresMetastore) -> None:
    groups = InPostgres(metastore)
    epoch = await claimed(groups, await groups.agent())
    scene = await open_scene(metastore, partitions=1)
    (key,) = scene.keys
    await metastore.groups.store_share_partitions("g", epoch, 1, [StoredSharePartition(key, 0, b"")])
    assert await metastore.groups.load_share_partitions("g") == [LoadedSharePartition(key, 0, b"", 0)]


@pytest.mark.requirement("X4")
async def test_a_claim_of_an_earlier_life_stores_nothing(metastore: PostgresMetastore, metastore_url: str) -> None:
    groups = InPostgres(metastore)
    epoch, (key,) = await claimed(groups, await groups.agent()), await groups.partitions(1)
    async with session(metastore_url) as raw:
        await raw.execute("UPDATE cluster SET life = 3")
        (row,) = await (
            await raw.execute(
                "SELECT store_share_partitions('g', %s, 1, ARRAY[%s]::bigint[], '{1}', ARRAY[''::bytea])",
                (epoch, key),
            )
        ).fetchall()
        assert row == (None,)


@pytest.mark.requirement("X12")
async def test_a_write_that_arrives_late_stores_nothing(groups: GroupsUnderTest) -> None:
    """One with an unknown outcome, after it was repeated with what had changed since."""
    api, agent, (key,) = groups.api, await groups.agent(), await groups.partitions(1)
    epoch = await claimed(groups, agent)
    assert await api.store_share_partitions("g", epoch, 2, [StoredSharePartition(key, 6, b"later")]) == [True]
    assert await api.store_share_partitions("g", epoch, 1, [StoredSharePartition(key, 5, b"late")]) == [True]
    assert await stored(api) == [(key, 6, b"later")]
    epoch = await claimed(groups, agent)
    assert await api.store_share_partitions("g", epoch, 1, [StoredSharePartition(key, 7, b"heir")]) == [True]
    assert await stored(api) == [(key, 7, b"heir")]


@pytest.mark.requirement("X4")
async def test_the_first_write_of_a_life_keeps_what_the_life_found(
    groups: GroupsUnderTest, request: pytest.FixtureRequest
) -> None:
    """And later writes keep that; a row that begins in the life has nothing."""
    api, agent, (old, new) = groups.api, await groups.agent(), await groups.partitions(2)
    epoch = await claimed(groups, agent)
    for revision, start in ((1, 7), (2, 5), (3, 9)):
        await api.store_share_partitions("g", epoch, revision, [StoredSharePartition(old, start, b"%d" % start)])
    (row,) = await api.share_states(("", -1), 10)
    assert row == StoredShareState(ShareState("g", old, epoch, 3, 5, 9, b"9"), None, None)
    if isinstance(api, FakeGroupApi):
        api.begin_life(3)
    else:
        async with session(request.getfixturevalue("metastore_url")) as raw:
            await raw.execute("UPDATE cluster SET life = 3")
            await raw.execute("SELECT setval('group_coordinator_epochs', %s)", (3 << NUMBER_BITS,))
        api.pool.life = 3
    epoch = await claimed(groups, agent)
    assert epoch >= 3 << NUMBER_BITS
    for revision, start in ((1, 10), (2, 12)):
        rows = [StoredSharePartition(key, start, b"%d" % start) for key in (old, new)]
        await api.store_share_partitions("g", epoch, revision, rows)
    assert await api.share_states(("", -1), 10) == [
        StoredShareState(ShareState("g", old, epoch, 2, 5, 12, b"12"), 3, GroupProgress(9, b"9")),
        StoredShareState(ShareState("g", new, epoch, 2, 10, 12, b"12"), None, None),
    ]


async def test_states_of_all_groups_come_in_pages(groups: GroupsUnderTest) -> None:
    api, agent, keys = groups.api, await groups.agent(), await groups.partitions(2)
    for name in ("b", "a"):
        epoch = await claimed(groups, agent, name)
        await api.store_share_partitions(name, epoch, 1, [StoredSharePartition(key, 1, b"") for key in keys])
    found, after = [], ("", -1)
    while page := await api.share_states(after, 3):
        after = page[-1].state.place
        found += [row.state.place for row in page]
    assert found == [(name, key) for name in ("a", "b") for key in keys]
