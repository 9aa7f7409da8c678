"""ClusterApi and ControllerApi in Postgres and in the fake that the agent's tests use.

Time passes by minutes, so that what the test itself takes makes no difference.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Protocol

import pytest

from headrace.config.settings import Settings
from headrace.metastore.api.agents import HeartbeatAnswer, RegisteredAgent
from headrace.metastore.api.cluster import StoredSnapshot
from headrace.metastore.api.controller import ControllerLease
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.topics import NewTopic, PartitionGrowth
from headrace.metastore.log.effective_configs import BROKER_RESOURCE
from headrace.metastore.log.kip631_records import TOPIC_RESOURCE, ConfigRecord
from headrace.metastore.log.snapshot import encode_snapshot, load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import AlreadyExistsError, FencedError, InvalidError, TruncatedError
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.manual_clock import ManualClock
from tests.metastore.sessions import move_time, new_agent, new_topic, session
from tests.nouns import nouns

MINUTE_MS = 60_000
SESSION_MS = 18 * MINUTE_MS
LEASE_MS = 10 * MINUTE_MS
A, B = uuid.UUID(int=1), uuid.UUID(int=2)


class ClusterUnderTest(Protocol):
    """A metastore with a clock that tests move."""

    @property
    def api(self) -> Metastore: ...
    async def pass_minutes(self, minutes: float) -> None:
        """Let the metastore's clock continue."""


class InPostgres:
    """The real thing; its clock begins long after the server did."""

    def __init__(self, metastore: PostgresMetastore, url: str) -> None:
        self.api, self._url, self._ahead = metastore, url, 60_000.0

    async def begin(self) -> None:
        await self.pass_minutes(0)
        async with session(self._url) as raw:
            await raw.execute("UPDATE lease_watch SET last_contact_at = wall_time(), resumed_at = '-infinity'")

    async def pass_minutes(self, minutes: float) -> None:
        self._ahead += minutes * 60
        async with session(self._url) as raw:
            await move_time(raw, self._ahead)


class InFake:
    """tests/agent/cluster/fake_cluster_api.py."""

    def __init__(self) -> None:
        self._clock = ManualClock()
        self.api = nouns(FakeClusterApi(self._clock))

    async def pass_minutes(self, minutes: float) -> None:
        self._clock.jump(minutes * 60)


@pytest.fixture(params=["postgres", "fake"])
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[ClusterUnderTest]:
    if request.param == "fake":
        yield InFake()
        return
    url = request.getfixturevalue("metastore_url")
    settings = Settings(metastore_pool_size=2, broker_session_timeout_ms=SESSION_MS)
    store = await PostgresMetastore.open(url, settings)
    real = InPostgres(store, url)
    await real.begin()
    yield real
    await store.close()


async def beat(
    api: Metastore, agent: RegisteredAgent, *, behind: int = 0, fence: bool = False, leave: bool = False
) -> HeartbeatAnswer:
    """A heartbeat of an agent that has applied all but the last `behind` records."""
    return await api.cluster.heartbeat(
        *agent,
        metadata_offset=await api.cluster.metadata_head() - behind,
        want_fence=fence,
        want_shut_down=leave,
        session_timeout_ms=SESSION_MS,
    )


async def test_a_heartbeat_tells_which_record_the_log_has_before_the_end_of_the_image(
    cluster: ClusterUnderTest,
) -> None:
    api = cluster.api
    agent = await api.cluster.register_agent(new_agent(1))
    await beat(api, agent)
    head = await api.cluster.metadata_head()
    for behind in range(2):
        (record,) = await api.cluster.read_metadata(head - behind - 1, 1)
        assert (await beat(api, agent, behind=behind)).record_before == record
    assert (await beat(api, agent, behind=head)).record_before is None
    assert (await beat(api, agent, behind=-1)).record_before is None


async def create(api: Metastore, *topics: NewTopic) -> None:
    assert await api.topics.create_topics(await api.cluster.metadata_head(), topics)


async def test_the_log_is_read_without_gaps_and_ends_empty(cluster: ClusterUnderTest) -> None:
    api = cluster.api
    start = await api.cluster.metadata_head()
    await create(api, new_topic("a", 3, **{"retention.ms": "5"}))
    head = await api.cluster.metadata_head()
    records = await api.cluster.read_metadata(start)
    assert len(records) == head - start == 5
    assert await api.cluster.read_metadata(start + 1, 2) == records[1:3]
    assert await api.cluster.read_metadata(head) == []


async def test_an_append_at_another_head_does_nothing(cluster: ClusterUnderTest) -> None:
    api, topic = cluster.api, new_topic("a")
    await create(api, topic)
    head = await api.cluster.metadata_head()
    config = ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name="a", name="retention.ms", value="5")
    for stale in (head - 1, head + 1):
        assert not await api.topics.create_topics(stale, [new_topic("b")])
        assert not await api.topics.delete_topics(stale, [topic.topic_id])
        assert not await api.topics.create_partitions(stale, [PartitionGrowth(topic.topic_id, 1, 2)])
        assert not await api.cluster.append_records(stale, [config])
    assert await api.cluster.metadata_head() == head
    assert await api.cluster.append_records(head, [config])
    assert await api.cluster.metadata_head() == head + 1


async def test_topics_appear_grow_and_disappear_in_the_image(cluster: ClusterUnderTest) -> None:
    api, topic = cluster.api, new_topic("a", 2, **{"retention.ms": "5"})
    await create(api, topic, new_topic("b"))
    assert await api.topics.create_partitions(
        await api.cluster.metadata_head(), [PartitionGrowth(topic.topic_id, 2, 4)]
    )
    image = await load_image(api.cluster)
    assert {name: found.undeleted_partition_count for name, found in image.topics_by_name.items()} == {"a": 4, "b": 1}
    assert await api.topics.delete_topics(await api.cluster.metadata_head(), [topic.topic_id])
    assert set((await load_image(api.cluster)).topics_by_name) == {"b"}


async def test_a_name_that_is_taken_and_a_topic_that_is_not_there_are_errors(cluster: ClusterUnderTest) -> None:
    api = cluster.api
    await create(api, new_topic("a"))
    head = await api.cluster.metadata_head()
    with pytest.raises(AlreadyExistsError):
        await api.topics.create_topics(head, [new_topic("b"), new_topic("a")])
    with pytest.raises(InvalidError):
        await api.topics.delete_topics(head, [uuid.uuid4()])
    assert await api.cluster.metadata_head() == head


async def test_a_registration_is_repeated_by_incarnation_and_refused_to_another(cluster: ClusterUnderTest) -> None:
    api, own = cluster.api, new_agent(7)
    agent = await api.cluster.register_agent(own)
    assert await api.cluster.register_agent(own) == agent
    with pytest.raises(AlreadyExistsError):
        await api.cluster.register_agent(new_agent(7))
    await cluster.pass_minutes(8)
    await beat(api, agent)
    await cluster.pass_minutes(8)
    await beat(api, await api.cluster.register_agent(new_agent(8)))
    await cluster.pass_minutes(8)
    with pytest.raises(AlreadyExistsError):
        await api.cluster.register_agent(new_agent(7))
    await beat(api, await api.cluster.register_agent(new_agent(9)))
    await cluster.pass_minutes(3)
    taken = await api.cluster.register_agent(new_agent(7))
    assert taken.broker_epoch > agent.broker_epoch, "silent for over a session timeout"
    with pytest.raises(FencedError):
        await beat(api, agent)


async def test_a_leased_node_id_is_nobodys(cluster: ClusterUnderTest) -> None:
    ids = [(await cluster.api.cluster.register_agent(new_agent())).node_id for _ in range(3)]
    assert len(set(ids)) == 3
    assert set((await load_image(cluster.api.cluster)).agents) == set(ids)


async def test_an_agent_is_unfenced_once_it_has_caught_up(cluster: ClusterUnderTest) -> None:
    api = cluster.api
    agent = await api.cluster.register_agent(new_agent(7))
    behind = await beat(api, agent, behind=1)
    assert (behind.is_caught_up, behind.is_fenced) == (False, True)
    caught_up = await beat(api, agent)
    assert (caught_up.is_caught_up, caught_up.is_fenced) == (True, False)
    assert caught_up.metadata_head == await api.cluster.metadata_head(), "the record that says so included"
    assert (await beat(api, agent, fence=True)).is_fenced
    assert [a.node_id for a in (await load_image(api.cluster)).live_agents()] == []


async def test_leaving_frees_the_node_id_and_a_stale_epoch_is_ignored(cluster: ClusterUnderTest) -> None:
    api, own = cluster.api, new_agent(7)
    agent = await api.cluster.register_agent(own)
    await api.cluster.unregister_agent(7, agent.broker_epoch - 1)
    assert set((await load_image(api.cluster)).agents) == {7}
    await api.cluster.unregister_agent(*agent)
    assert (await load_image(api.cluster)).agents == {}
    assert (await api.cluster.register_agent(replace(own, incarnation_id=uuid.uuid4()))).node_id == 7


async def test_the_lease_is_kept_taken_over_and_resigned(cluster: ClusterUnderTest) -> None:
    api = cluster.api
    assert await api.controller.describe_controller() is None
    first = await api.controller.hold_controller_lease(1, A, LEASE_MS)
    assert first.is_own
    assert await api.controller.hold_controller_lease(1, A, LEASE_MS) == first
    standby = await api.controller.hold_controller_lease(2, B, LEASE_MS)
    assert (standby.controller_id, standby.is_own) == (1, False)
    assert 0 < standby.remaining_ms <= LEASE_MS
    assert standby.metadata_head == first.metadata_head == await api.cluster.metadata_head()
    await cluster.pass_minutes(11)
    assert await api.controller.describe_controller() is None
    second = await api.controller.hold_controller_lease(2, B, LEASE_MS)
    assert (second.controller_id, second.is_own) == (2, True)
    assert second.controller_epoch > first.controller_epoch
    await api.controller.resign_controller(first.controller_epoch)
    assert await api.controller.describe_controller() == ControllerLease(*second[:2], is_own=False), (
        "a stale epoch resigns nothing"
    )
    await api.controller.resign_controller(second.controller_epoch)
    assert (await api.controller.hold_controller_lease(1, A, LEASE_MS)).is_own


async def test_a_replaced_controller_is_refused_everything(cluster: ClusterUnderTest) -> None:
    api = cluster.api
    stale = (await api.controller.hold_controller_lease(1, A, LEASE_MS)).controller_epoch
    await cluster.pass_minutes(11)
    await api.controller.hold_controller_lease(2, B, LEASE_MS)
    await create(api, new_topic("a"))
    head = await api.cluster.metadata_head()
    with pytest.raises(FencedError):
        await api.controller.fence_silent_agents(stale, session_timeout_ms=SESSION_MS)
    with pytest.raises(FencedError):
        await api.controller.save_snapshot(stale, StoredSnapshot(head, b""))
    with pytest.raises(FencedError):
        await api.controller.truncate_metadata(stale, 10)
    with pytest.raises(FencedError):
        await api.cluster.append_records(head, [], controller_epoch=stale)
    assert await api.cluster.newest_snapshot() is None


async def test_the_controller_fences_who_is_silent(cluster: ClusterUnderTest) -> None:
    api = cluster.api
    silent, heard = await api.cluster.register_agent(new_agent(1)), await api.cluster.register_agent(new_agent(2))
    for agent in (silent, heard):
        assert not (await beat(api, agent)).is_fenced
    for _ in range(4):
        await cluster.pass_minutes(5)
        await beat(api, heard)
    lease = await api.controller.hold_controller_lease(1, A, LEASE_MS)
    assert lease.has_silent
    epoch = lease.controller_epoch
    assert await api.controller.fence_silent_agents(epoch, session_timeout_ms=SESSION_MS) == [1]
    assert not (await api.controller.hold_controller_lease(1, A, LEASE_MS)).has_silent
    assert await api.controller.fence_silent_agents(epoch, session_timeout_ms=SESSION_MS) == []
    assert [agent.node_id for agent in (await load_image(api.cluster)).live_agents()] == [2]


async def members(cluster: ClusterUnderTest, count: int) -> list[RegisteredAgent]:
    """Unfenced agents 1 to `count`."""
    agents = [await cluster.api.cluster.register_agent(new_agent(node_id)) for node_id in range(1, count + 1)]
    for agent in agents:
        assert not (await beat(cluster.api, agent)).is_fenced
    return agents


async def hide(api: Metastore, epoch: int, agent: RegisteredAgent) -> bool:
    return await api.controller.hide_agent(epoch, agent.node_id, agent.broker_epoch, session_timeout_ms=SESSION_MS)


async def visible(api: Metastore) -> list[int]:
    return [agent.node_id for agent in (await load_image(api.cluster)).live_agents()]


async def test_a_hidden_agent_is_shown_by_its_next_heartbeat(cluster: ClusterUnderTest) -> None:
    api = cluster.api
    one, *_ = await members(cluster, 3)
    epoch = (await api.controller.hold_controller_lease(2, A, LEASE_MS)).controller_epoch
    assert await hide(api, epoch, one)
    assert not await hide(api, epoch, one), "it is hidden already"
    assert await visible(api) == [2, 3]
    assert not (await load_image(api.cluster)).agents[1].fenced
    assert not (await beat(api, one)).is_fenced
    assert await visible(api) == [1, 2, 3]


async def test_an_agent_that_is_heard_is_hidden_once_only(cluster: ClusterUnderTest) -> None:
    api = cluster.api
    one, *_ = await members(cluster, 3)
    epoch = (await api.controller.hold_controller_lease(2, A, LEASE_MS)).controller_epoch
    assert await hide(api, epoch, one)
    await beat(api, one)
    await cluster.pass_minutes(5)
    assert not await hide(api, epoch, one), "it was heard less than a third of its lease ago"
    await cluster.pass_minutes(2)
    assert await hide(api, epoch, one), "it is silent"
    again = await api.cluster.register_agent(new_agent(4))
    assert not (await beat(api, again)).is_fenced
    assert await hide(api, epoch, again), "another registration"


async def test_neither_the_last_agent_nor_most_of_them_are_hidden(cluster: ClusterUnderTest) -> None:
    api = cluster.api
    (alone,) = await members(cluster, 1)
    epoch = (await api.controller.hold_controller_lease(101, A, LEASE_MS)).controller_epoch
    assert not await hide(api, epoch, alone)
    others = [await api.cluster.register_agent(new_agent(node_id)) for node_id in (2, 3, 4)]
    for agent in others:
        await beat(api, agent)
    assert [await hide(api, epoch, agent) for agent in (alone, *others)] == [True, True, False, False]
    assert await visible(api) == [3, 4]


async def test_only_a_member_is_hidden_and_only_by_the_controller(cluster: ClusterUnderTest) -> None:
    api = cluster.api
    one, two, three = await members(cluster, 3)
    stale = (await api.controller.hold_controller_lease(101, A, LEASE_MS)).controller_epoch
    epoch = (await api.controller.succeed_controller(102, B, LEASE_MS, stale)).controller_epoch
    with pytest.raises(FencedError):
        await hide(api, stale, one)
    assert not await api.controller.hide_agent(epoch, 1, one.broker_epoch + 1, session_timeout_ms=SESSION_MS), (
        "another epoch"
    )
    assert not await api.controller.hide_agent(epoch, 9, 0, session_timeout_ms=SESSION_MS), "not registered"
    assert not (await beat(api, two, leave=True)).is_fenced
    assert not await hide(api, epoch, two), "it leaves"
    assert not (await beat(api, three)).is_fenced


async def test_a_hidden_agent_that_stays_silent_is_fenced(cluster: ClusterUnderTest) -> None:
    api = cluster.api
    gone, heard, other = await members(cluster, 3)
    epoch = (await api.controller.hold_controller_lease(101, A, LEASE_MS)).controller_epoch
    assert await hide(api, epoch, gone)
    for _ in range(4):
        await cluster.pass_minutes(5)
        await beat(api, heard)
        await beat(api, other)
    epoch = (await api.controller.hold_controller_lease(101, A, LEASE_MS)).controller_epoch
    assert await api.controller.fence_silent_agents(epoch, session_timeout_ms=SESSION_MS) == [1]
    agent = (await load_image(api.cluster)).agents[1]
    assert (agent.fenced, agent.hidden) == (True, False)


async def test_one_standby_succeeds_a_controller_that_is_gone(cluster: ClusterUnderTest) -> None:
    api = cluster.api
    gone = await api.controller.hold_controller_lease(1, A, LEASE_MS)
    C = uuid.UUID(int=3)
    second = await api.controller.succeed_controller(2, B, LEASE_MS, gone.controller_epoch)
    assert (second.controller_id, second.is_own) == (2, True)
    assert second.controller_epoch > gone.controller_epoch
    third = await api.controller.succeed_controller(3, C, LEASE_MS, gone.controller_epoch)
    assert (third.controller_id, third.is_own) == (2, False), "the epoch is another one by now"
    assert (await api.controller.succeed_controller(2, B, LEASE_MS, second.controller_epoch)).controller_epoch == (
        second.controller_epoch
    ), "it does not succeed itself"
    old = await api.controller.hold_controller_lease(1, A, LEASE_MS)
    assert not old.is_own


async def test_the_log_is_truncated_to_the_older_of_two_snapshots(cluster: ClusterUnderTest) -> None:
    api = cluster.api
    epoch = (await api.controller.hold_controller_lease(1, A, LEASE_MS)).controller_epoch
    ends = []
    for name in ("a", "b"):
        await create(api, new_topic(name))
        image = await load_image(api.cluster)
        await api.controller.save_snapshot(epoch, StoredSnapshot(image.offset, encode_snapshot(image)))
        ends.append(image.offset)
        if name == "a":
            assert await api.controller.truncate_metadata(epoch, 100) == 0, "there is one snapshot"
    with pytest.raises(InvalidError):
        await api.controller.save_snapshot(epoch, StoredSnapshot(ends[1] + 1, b""))
    newest = await api.cluster.newest_snapshot()
    assert newest is not None
    assert newest.end_offset == ends[1]
    start = await api.cluster.metadata_log_start()
    assert await api.controller.truncate_metadata(epoch, 1) == 1
    assert await api.controller.truncate_metadata(epoch, 100) == ends[0] - 2 - start
    assert await api.cluster.metadata_log_start() == ends[0] - 1
    with pytest.raises(TruncatedError):
        await api.cluster.read_metadata(start)
    state = await api.controller.snapshot_state()
    assert (state.end_offset, state.log_records) == (ends[1], 0)
    assert set((await load_image(api.cluster)).topics_by_name) == {"a", "b"}


# -- the length of a lease


async def set_for_cluster(api: Metastore, name: str, value: int) -> None:
    record = ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="", name=name, value=str(value))
    assert await api.cluster.append_records(await api.cluster.metadata_head(), [record])


async def fenced_within(cluster: ClusterUnderTest, minutes: int, *, session_ms: int) -> list[int]:
    """Node ids that a controller fences in this time; its calls show the metastore that there is no outage."""
    api, fenced = cluster.api, list[int]()
    for _ in range(minutes // 2):
        await cluster.pass_minutes(2)
        lease = await api.controller.hold_controller_lease(101, A, LEASE_MS)
        fenced += await api.controller.fence_silent_agents(lease.controller_epoch, session_timeout_ms=session_ms)
    return fenced


async def test_a_controller_with_a_shorter_timeout_does_not_fence_a_longer_lease(cluster: ClusterUnderTest) -> None:
    """An agent's file says 18 minutes, the controller's 6: fencing after 6 would give a group two coordinators."""
    api = cluster.api
    agent = await api.cluster.register_agent(new_agent(1))
    assert (await beat(api, agent)).session_timeout_ms == SESSION_MS
    assert await fenced_within(cluster, 16, session_ms=6 * MINUTE_MS) == []
    assert await fenced_within(cluster, 4, session_ms=6 * MINUTE_MS) == [1]


async def test_a_shorter_session_of_the_cluster_counts_once_the_granted_lease_ended(cluster: ClusterUnderTest) -> None:
    api = cluster.api
    agent = await api.cluster.register_agent(new_agent(1))
    await beat(api, agent)
    await set_for_cluster(api, "broker.session.timeout.ms", 6 * MINUTE_MS)
    granted = await api.cluster.heartbeat(
        *agent, metadata_offset=await api.cluster.metadata_head(), want_fence=False, session_timeout_ms=6 * MINUTE_MS
    )
    assert granted.session_timeout_ms == 6 * MINUTE_MS
    assert await fenced_within(cluster, 16, session_ms=6 * MINUTE_MS) == [], "that answer may have been lost"
    with pytest.raises(AlreadyExistsError):
        await api.cluster.register_agent(new_agent(1))
    assert await fenced_within(cluster, 4, session_ms=6 * MINUTE_MS) == [1]
    await api.cluster.register_agent(new_agent(1))


async def test_the_cluster_grants_its_own_length_to_agents_that_ask_for_another(cluster: ClusterUnderTest) -> None:
    api = cluster.api
    await set_for_cluster(api, "broker.session.timeout.ms", 30 * MINUTE_MS)
    agent = await api.cluster.register_agent(new_agent(1))
    assert (await beat(api, agent)).session_timeout_ms == 30 * MINUTE_MS
    await set_for_cluster(api, "broker.session.timeout.ms", 3 * MINUTE_MS)
    assert (await beat(api, agent)).session_timeout_ms == 3 * MINUTE_MS


async def test_a_shorter_lease_of_the_controller_counts_once_the_granted_one_ended(cluster: ClusterUnderTest) -> None:
    api = cluster.api
    first = await api.controller.hold_controller_lease(101, A, LEASE_MS)
    assert first.lease_ms == LEASE_MS
    await set_for_cluster(api, "controller.lease.ms", 3 * MINUTE_MS)
    assert (await api.controller.hold_controller_lease(101, A, 2 * MINUTE_MS)).lease_ms == 2 * MINUTE_MS, (
        "if it is not lost"
    )
    assert (await api.controller.hold_controller_lease(102, B, LEASE_MS)).lease_ms == 2 * MINUTE_MS, (
        "how often a standby looks"
    )
    await cluster.pass_minutes(8)
    assert not (await api.controller.hold_controller_lease(102, B, 2 * MINUTE_MS)).is_own
    await cluster.pass_minutes(3)
    second = await api.controller.hold_controller_lease(102, B, 2 * MINUTE_MS)
    assert (second.is_own, second.lease_ms) == (True, 2 * MINUTE_MS)
    await cluster.pass_minutes(3)
    assert (await api.controller.hold_controller_lease(101, A, 2 * MINUTE_MS)).is_own
