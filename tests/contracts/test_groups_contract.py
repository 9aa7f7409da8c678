"""GroupApi in Postgres and in the fake that the agent's tests use: claims, saved state, committed offsets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest

from headrace.metastore.api.agents import RegisteredAgent
from headrace.metastore.api.groups import CommittedOffset, GroupApi, GroupKind, GroupListing, GroupRecord
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import FencedError
from tests.agent.groups.fake_group_api import FakeGroupApi
from tests.metastore.commit_scenes import open_scene
from tests.metastore.sessions import beat, delete, join

STABLE = GroupRecord(GroupKind.CONSUMER, "Stable", "consumer", ("events",), b"members")
EMPTY = GroupRecord(GroupKind.CLASSIC, "Empty", "consumer", None, b"no members")


Write = Callable[[GroupApi, int, int], Awaitable[object]]
WRITES: list[Write] = [
    lambda api, epoch, key: api.save_group("g", epoch, EMPTY),
    lambda api, epoch, key: api.delete_group("g", epoch),
    lambda api, epoch, key: api.commit_offsets("g", epoch, [CommittedOffset(key, 9, 0, "")]),
    lambda api, epoch, key: api.delete_offsets("g", epoch, [key]),
]
"""Each under a coordinator epoch."""


class GroupsUnderTest(Protocol):
    """A GroupApi, the agents that may claim and the partitions that exist."""

    @property
    def api(self) -> GroupApi: ...
    async def agent(self) -> RegisteredAgent:
        """A registered, unfenced agent."""

    async def fence(self, agent: RegisteredAgent) -> None:
        """Fence the agent: from now on it may not coordinate."""

    async def partitions(self, count: int) -> list[int]:
        """Keys of a new topic, ascending."""

    async def delete_topic(self) -> None:
        """The topic of the last call of `partitions`."""


class InPostgres:
    """The real thing."""

    def __init__(self, metastore: PostgresMetastore) -> None:
        self.metastore, self.api = metastore, metastore.groups

    async def agent(self) -> RegisteredAgent:
        return await join(self.metastore)

    async def fence(self, agent: RegisteredAgent) -> None:
        assert (await beat(self.metastore, agent, want_fence=True)).is_fenced

    async def partitions(self, count: int) -> list[int]:
        self._scene = await open_scene(self.metastore, partitions=count)
        return self._scene.keys

    async def delete_topic(self) -> None:
        await delete(self.metastore, self._scene.topic.topic_id)


class InFake:
    """tests/agent/groups/fake_group_api.py."""

    def __init__(self) -> None:
        self._live: set[tuple[int, int]] = set()
        self._keys: list[int] = []
        self.api = FakeGroupApi(lambda node_id, epoch: (node_id, epoch) in self._live)

    async def agent(self) -> RegisteredAgent:
        agent = RegisteredAgent(len(self._live) + 1, 7)
        self._live.add(agent)
        return agent

    async def fence(self, agent: RegisteredAgent) -> None:
        self._live.remove(agent)

    async def partitions(self, count: int) -> list[int]:
        self._keys = [5 << 24 | index for index in range(count)]
        return self._keys

    async def delete_topic(self) -> None:
        self.api.delete_partitions(self._keys)


@pytest.fixture(params=["postgres", "fake"])
def groups(request: pytest.FixtureRequest) -> GroupsUnderTest:
    if request.param == "fake":
        return InFake()
    return InPostgres(request.getfixturevalue("metastore"))


async def claimed(groups: GroupsUnderTest, agent: RegisteredAgent, group_id: str = "g") -> int:
    """The coordinator epoch of a claim that succeeds."""
    claim = await groups.api.claim_group(group_id, *agent)
    assert claim is not None
    return claim.coordinator_epoch


async def test_a_new_group_has_no_record_and_is_not_listed(groups: GroupsUnderTest) -> None:
    claim = await groups.api.claim_group("g", *await groups.agent())
    assert claim is not None
    assert claim.record is None
    assert await groups.api.list_groups() == []


async def test_a_live_holder_bars_others_until_it_releases(groups: GroupsUnderTest) -> None:
    first, second = await groups.agent(), await groups.agent()
    epoch = await claimed(groups, first)
    assert await groups.api.claim_group("g", *second) is None
    again = await claimed(groups, first)
    assert again > epoch, "to claim again is allowed, and fences the calls of before"
    await groups.api.release_groups({"g": epoch})
    assert await groups.api.claim_group("g", *second) is None, "a stale epoch releases nothing"
    await groups.api.release_groups({"g": again})
    assert await claimed(groups, second) > again


async def test_a_fenced_holder_bars_no_other_and_may_not_claim(groups: GroupsUnderTest) -> None:
    first, second = await groups.agent(), await groups.agent()
    epoch = await claimed(groups, first)
    await groups.fence(first)
    with pytest.raises(FencedError):
        await groups.api.claim_group("other", *first)
    assert await claimed(groups, second) > epoch


async def test_the_next_coordinator_reads_what_was_saved_last(groups: GroupsUnderTest) -> None:
    first, second = await groups.agent(), await groups.agent()
    epoch = await claimed(groups, first)
    await groups.api.save_group("g", epoch, EMPTY)
    await groups.api.save_group("g", epoch, STABLE)
    await groups.api.release_groups({"g": epoch})
    claim = await groups.api.claim_group("g", *second)
    assert claim is not None
    assert claim.record == STABLE


@pytest.mark.parametrize("operation", WRITES)
async def test_a_stale_coordinator_changes_nothing(groups: GroupsUnderTest, operation: Write) -> None:
    agent, (key,) = await groups.agent(), await groups.partitions(1)
    stale = await claimed(groups, agent)
    epoch = await claimed(groups, agent)
    await groups.api.save_group("g", epoch, STABLE)
    await groups.api.commit_offsets("g", epoch, [CommittedOffset(key, 3, 0, "m")])
    with pytest.raises(FencedError):
        await operation(groups.api, stale, key)
    assert await groups.api.list_groups() == [GroupListing("g", GroupKind.CONSUMER, "Stable", "consumer")]
    assert await groups.api.fetch_offsets("g", None) == [CommittedOffset(key, 3, 0, "m")]


async def test_offsets_are_kept_per_partition_and_the_last_one_counts(groups: GroupsUnderTest) -> None:
    epoch, keys = await claimed(groups, await groups.agent()), await groups.partitions(3)
    first = [CommittedOffset(key, 5, 0, "é") for key in reversed(keys)]
    assert await groups.api.commit_offsets("g", epoch, first) == [True, True, True]
    twice = [CommittedOffset(keys[1], 6, 1, "a"), CommittedOffset(keys[1], 7, 1, "b")]
    assert await groups.api.commit_offsets("g", epoch, twice) == [True, True]
    found = await groups.api.fetch_offsets("g", None)
    assert [(offset.partition_key, offset.offset) for offset in found] == [(keys[0], 5), (keys[1], 7), (keys[2], 5)]
    assert await groups.api.fetch_offsets("g", [keys[1], 1 << 50]) == [twice[1]]
    assert await groups.api.fetch_offsets("other", None) == []


async def test_deleted_offsets_are_gone_and_deleting_again_is_no_error(groups: GroupsUnderTest) -> None:
    epoch, (a, b) = await claimed(groups, await groups.agent()), await groups.partitions(2)
    await groups.api.commit_offsets("g", epoch, [CommittedOffset(key, 5, 0, "") for key in (a, b)])
    for _ in range(2):
        await groups.api.delete_offsets("g", epoch, [a])
    assert [offset.partition_key for offset in await groups.api.fetch_offsets("g", None)] == [b]


async def test_a_deleted_partition_takes_its_offsets_along(groups: GroupsUnderTest) -> None:
    epoch, (key,) = await claimed(groups, await groups.agent()), await groups.partitions(1)
    await groups.api.commit_offsets("g", epoch, [CommittedOffset(key, 5, 0, "")])
    await groups.delete_topic()
    assert await groups.api.fetch_offsets("g", None) == []
    assert await groups.api.fetch_offsets("g", [key]) == []
    assert await groups.api.commit_offsets("g", epoch, [CommittedOffset(key, 6, 0, "")]) == [False]


async def test_a_deleted_group_is_gone_with_its_offsets_and_claims(groups: GroupsUnderTest) -> None:
    agent, (key,) = await groups.agent(), await groups.partitions(1)
    epoch = await claimed(groups, agent)
    await groups.api.save_group("g", epoch, STABLE)
    await groups.api.commit_offsets("g", epoch, [CommittedOffset(key, 5, 0, "")])
    assert await groups.api.delete_group("g", epoch)
    assert await groups.api.list_groups() == []
    assert await groups.api.fetch_offsets("g", None) == []
    again = await claimed(groups, agent)
    assert again > epoch
    assert not await groups.api.delete_group("g", again), "there was nothing of it"


async def test_a_group_with_offsets_alone_is_listed_and_one_with_nothing_is_forgotten(groups: GroupsUnderTest) -> None:
    agent, (key,) = await groups.agent(), await groups.partitions(1)
    epoch, empty = await claimed(groups, agent), await claimed(groups, agent, "nothing")
    await groups.api.commit_offsets("g", epoch, [CommittedOffset(key, 5, 0, "")])
    await groups.api.release_groups({"g": epoch, "nothing": empty})
    assert await groups.api.list_groups() == [GroupListing("g", GroupKind.CLASSIC, "Empty", "")]
    assert await groups.api.list_groups(["nothing"]) == []
    assert [found.group_id for found in await groups.api.list_groups(["g", "nothing"])] == ["g"]
