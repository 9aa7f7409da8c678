"""Offsets expire as Kafka's do (KIP-211), in chunks, and never while a member uses them."""

from __future__ import annotations

import pytest

from headrace.metastore.api.agents import RegisteredAgent
from headrace.metastore.api.groups import CommittedOffset, GroupKind, GroupRecord
from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.sessions import Session, create, join, move_time, new_topic, rows, session, set_for_cluster

DAY_SECONDS = 86_400
LIMIT = 1_000


class Groups:
    """Two topics, `events` (3 partitions) and `logs` (1), one agent that holds every group, and a clock."""

    def __init__(self, store: PostgresMetastore, url: str, agent: RegisteredAgent, keys: dict[str, list[int]]) -> None:
        self.store, self.url, self.agent, self.keys = store, url, agent, keys
        self.epochs: dict[str, int] = {}
        self.days = 0.0

    async def claim(self, group_id: str) -> None:
        claim = await self.store.groups.claim_group(group_id, *self.agent)
        assert claim is not None
        self.epochs[group_id] = claim.coordinator_epoch

    async def commit(self, group_id: str, *topics: str) -> None:
        keys = [key for topic in topics for key in self.keys[topic]]
        offsets = [CommittedOffset(key, 5, -1, "") for key in keys]
        assert all(await self.store.groups.commit_offsets(group_id, self.epochs[group_id], offsets))

    async def save(self, group_id: str, state: str, subscribed: tuple[str, ...] | None = ()) -> None:
        record = GroupRecord(GroupKind.CLASSIC, state, "consumer", subscribed, b"saved")
        await self.store.groups.save_group(group_id, self.epochs[group_id], record)

    async def release(self, *group_ids: str) -> None:
        await self.store.groups.release_groups({group_id: self.epochs[group_id] for group_id in group_ids})

    async def pass_days(self, days: float) -> None:
        self.days += days
        async with session(self.url) as raw:
            await move_time(raw, self.days * DAY_SECONDS)

    async def expire(self) -> int:
        """Expire groups until there is nothing old any more; how many were looked at."""
        total = 0
        while looked_at := await self.store.housekeeping.expire_group_offsets(LIMIT):
            total += looked_at
        return total

    async def left(self, group_id: str) -> set[str]:
        """Topics with offsets."""
        stored = {offset.partition_key for offset in await self.store.groups.fetch_offsets(group_id, None)}
        return {topic for topic, keys in self.keys.items() if stored & set(keys)}

    async def listed(self) -> list[str]:
        return [group.group_id for group in await self.store.groups.list_groups()]


@pytest.fixture
async def groups(metastore: PostgresMetastore, metastore_url: str) -> Groups:
    agent = await join(metastore)
    image = await create(metastore, new_topic("events", 3), new_topic("logs", 1))
    keys = {
        name: [topic.key(index) or 0 for index in range(topic.initial_partition_count)]
        for name, topic in image.topics_by_name.items()
    }
    return Groups(metastore, metastore_url, agent, keys)


async def test_a_standalone_consumers_offsets_go_one_retention_after_their_commit(groups: Groups) -> None:
    await groups.claim("g")
    await groups.commit("g", "events", "logs")
    await groups.pass_days(6.9)
    assert await groups.expire() == 0
    await groups.commit("g", "logs")
    await groups.pass_days(0.2)
    await groups.expire()
    assert await groups.left("g") == {"logs"}
    await groups.release("g")
    await groups.pass_days(7)
    await groups.expire()
    assert await groups.listed() == []


async def test_the_clock_of_a_group_starts_when_it_is_empty(groups: Groups) -> None:
    await groups.claim("g")
    await groups.save("g", "Stable", ("events", "logs"))
    await groups.commit("g", "events", "logs")
    await groups.pass_days(30)
    await groups.expire()
    assert await groups.left("g") == {"events", "logs"}
    await groups.save("g", "Empty")
    await groups.pass_days(6)
    await groups.save("g", "Empty")  # it was empty before
    await groups.expire()
    assert await groups.left("g") == {"events", "logs"}
    await groups.commit("g", "logs")  # an admin, or a consumer that assigns itself
    await groups.pass_days(1.1)
    await groups.expire()
    assert await groups.left("g") == {"logs"}


async def test_who_comes_back_in_time_keeps_its_positions(groups: Groups) -> None:
    await groups.claim("g")
    await groups.save("g", "Empty")
    await groups.commit("g", "events")
    await groups.pass_days(6.99)
    await groups.save("g", "PreparingRebalance", None)
    await groups.pass_days(1)
    await groups.expire()
    assert await groups.left("g") == {"events"}
    await groups.save("g", "Empty")
    await groups.pass_days(6.9)
    await groups.expire()
    assert await groups.left("g") == {"events"}
    await groups.pass_days(0.2)
    await groups.expire()
    assert await groups.left("g") == set()


async def test_an_active_group_loses_only_topics_that_it_no_longer_consumes(groups: Groups) -> None:
    await groups.claim("g")
    await groups.save("g", "Stable", ("events",))
    await groups.commit("g", "events", "logs")
    await groups.claim("unknown")
    await groups.save("unknown", "Stable", None)
    await groups.commit("unknown", "events", "logs")
    await groups.pass_days(8)
    await groups.expire()
    assert await groups.left("g") == {"events"}
    assert await groups.left("unknown") == {"events", "logs"}
    assert await groups.listed() == ["g", "unknown"]


async def test_what_may_not_go_is_not_met_again_by_the_next_pass(groups: Groups) -> None:
    for number in range(5):
        await groups.claim(f"g{number}")
        await groups.save(f"g{number}", "Stable", ("events",))
        await groups.commit(f"g{number}", "events")
    await groups.pass_days(8)
    assert await groups.expire() == 5 * 3 + 5
    assert await groups.expire() == 0
    await groups.pass_days(8)
    assert await groups.expire() == 5 * 3 + 5


async def test_expiry_goes_in_chunks(groups: Groups) -> None:
    for number in range(4):
        await groups.claim(f"g{number}")
        await groups.commit(f"g{number}", "events")
    await groups.release(*groups.epochs)
    await groups.pass_days(8)
    passes = 0
    while await groups.store.housekeeping.expire_group_offsets(2):
        passes += 1
    assert passes >= 6
    assert await groups.listed() == []


async def test_a_group_with_nothing_in_it_goes_unless_a_live_agent_holds_it(groups: Groups, raw: Session) -> None:
    await groups.claim("held")
    await groups.claim("abandoned")
    await groups.claim("saved")
    await groups.save("saved", "Empty")
    await raw.execute("UPDATE consumer_groups SET broker_epoch = -7 WHERE group_id <> 'held'")  # of a dead agent
    await groups.pass_days(8)
    await groups.expire()
    assert await rows(raw, "SELECT group_id FROM consumer_groups") == [("held",)]


async def test_expiry_leaves_a_locked_group_alone(groups: Groups, raw: Session) -> None:
    """A commit, a claim or a save under way is not waited for, and what it does is judged afterwards."""
    for group_id in ("busy", "idle"):
        await groups.claim(group_id)
        await groups.commit(group_id, "events")
    await groups.pass_days(8)
    async with raw.transaction():
        await raw.execute("SELECT FROM consumer_groups WHERE group_id = 'busy' FOR SHARE")
        await groups.expire()
        assert await groups.left("busy") == {"events"}
        assert await groups.left("idle") == set()
    await groups.commit("busy", "events")
    await groups.expire()
    assert await groups.left("busy") == {"events"}


async def test_expiry_reads_what_is_old_and_nothing_else(groups: Groups, raw: Session) -> None:
    """O(looked at): the plans of both look-ups are index scans that stop at the first that is young."""
    await raw.execute("SET enable_seqscan = off")
    await raw.execute("SET enable_bitmapscan = off")
    for table in ("group_offsets", "consumer_groups"):
        query = f"SELECT group_id FROM {table} WHERE expiry_slot < 7 ORDER BY expiry_slot LIMIT 1000"
        plan = "\n".join(line for (line,) in await rows(raw, f"EXPLAIN {query}"))
        assert f"Index Scan using {table}_expiry" in plan
        assert "Index Cond: (expiry_slot < 7)" in plan
        assert "Sort" not in plan


async def test_offsets_expire_by_the_clusters_value(groups: Groups) -> None:
    """The calling process has 7 days in its file."""
    await groups.claim("g")
    await groups.commit("g", "events")
    await set_for_cluster(groups.store, "offsets.retention.minutes", 30 * 24 * 60)
    await groups.pass_days(20)
    await groups.expire()
    assert await groups.left("g") == {"events"}
    await set_for_cluster(groups.store, "offsets.retention.minutes", 19 * 24 * 60)
    await groups.expire()
    assert await groups.left("g") == set()
