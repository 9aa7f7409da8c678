"""States of an agent: registered fenced, unfenced when caught up, registered again when fenced, removed at stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.cluster.cluster import Cluster
from headrace.agent.cluster.membership import (
    NOT_A_MEMBER,
    REGISTRATION_TIMEOUT_SECONDS,
    BrokerState,
)
from headrace.agent.cluster.view import ClusterView
from headrace.config.settings import Settings
from headrace.metastore.api.agents import HeartbeatAnswer
from headrace.metastore.keys import partition_key
from headrace.metastore.log.kip631_records import FenceBrokerRecord
from headrace.storage.dependency import METASTORE, NotReady
from headrace.storage.errors import InvalidError, OutcomeUnknownError, UnavailableError
from tests.agent.cluster.fake_cluster_api import FakeClusterApi
from tests.agent.cluster.made_agents import a_membership, an_agent
from tests.manual_clock import ManualClock


@pytest.fixture
async def cluster(api: FakeClusterApi, fake_clock: ManualClock) -> AsyncIterator[Cluster]:
    """Agent 1, started."""
    cluster = an_agent(api)
    await fake_clock.run(cluster.start())
    yield cluster
    await cluster.stop()


async def test_a_cluster_is_a_view(api: FakeClusterApi) -> None:
    view: ClusterView = an_agent(api)
    assert (view.cluster_id, view.commit_shards, view.node_id, view.broker_epoch) == ("cluster-id", 8, -1, -1)


async def test_starting_ends_unfenced_and_routed_to(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    cluster = an_agent(api, rack="a")
    assert cluster.leader(partition_key(5, 0)) is None
    await fake_clock.run(cluster.start())
    own = cluster.image.agents[1]
    assert (own.fenced, own.rack, own.broker_epoch) == (False, "a", cluster.broker_epoch)
    assert cluster.leader(partition_key(5, 0)) == own
    assert cluster.coordinator("g") == own
    await cluster.stop()
    assert api.agents == {}
    assert cluster.membership.state is BrokerState.NOT_RUNNING


async def test_unfenced_only_when_caught_up(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    for number in range(5):
        api.add_topic(f"t{number}", 10)
    cluster = an_agent(api)
    lags: list[int] = []
    heartbeat = api.heartbeat

    async def watched(node_id: int, broker_epoch: int, *, metadata_offset: int, **wishes: Any) -> HeartbeatAnswer:
        lags.append(len(api.log) - metadata_offset)
        return await heartbeat(node_id, broker_epoch, metadata_offset=metadata_offset, **wishes)

    api.heartbeat = watched  # type: ignore[method-assign]
    api.fail_before["read_metadata"] = [UnavailableError("down")] * 3
    await fake_clock.run(cluster.start())
    assert lags == [0]  # the image held the registration itself before the one heartbeat that unfenced
    assert len(cluster.image.topics_by_name) == 5
    await cluster.stop()


@pytest.mark.requirement("X7")
async def test_an_agent_that_is_made_to_leave_registers_again(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    """Another process asked for the controlled shutdown of this agent's registration."""
    other, cluster = an_agent(api, 2, seed=8), an_agent(api)
    await fake_clock.run(other.start())
    await fake_clock.run(cluster.start())
    first = cluster.broker_epoch
    await api.heartbeat(
        1, first, metadata_offset=len(api.log), want_fence=False, want_shut_down=True, session_timeout_ms=18_000
    )
    api.fail_before["register_agent"] = [UnavailableError("down")] * 3
    await fake_clock.advance(3.5)
    assert cluster.membership.not_ready() == NotReady(NOT_A_MEMBER)
    await fake_clock.advance(10)
    assert cluster.membership.not_ready() is None
    assert cluster.broker_epoch > first
    assert cluster.membership.state is BrokerState.RUNNING
    assert cluster.membership.holds_lease()
    own = cluster.image.agents[1]
    assert (own.fenced, own.leaving) == (False, False)
    await cluster.stop()
    await other.stop()


async def test_who_reads_an_old_log_stays_fenced(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    cluster = an_agent(api)
    read_metadata = api.read_metadata

    async def lagging(start_offset: int, limit: int = 10_000) -> list[bytes]:
        records = await read_metadata(start_offset, limit)
        return records[:-1] if api.calls["read_metadata"] < 6 else records

    api.read_metadata = lagging  # type: ignore[method-assign]
    starting = asyncio.create_task(cluster.start())
    await fake_clock.settle()
    assert cluster.membership.state is BrokerState.RECOVERY
    assert api.agents[1].fenced
    await fake_clock.run(starting)
    assert not cluster.image.agents[1].fenced
    await cluster.stop()


@pytest.mark.requirement("C7")
async def test_broker_states_are_kafkas_and_pass_through_recovery(
    api: FakeClusterApi, fake_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    membership = a_membership(api, registry=registry)

    def gauge() -> float | None:
        return registry.get_sample_value("headrace_broker_state")

    assert gauge() == 0
    with caplog.at_level("INFO"):
        await fake_clock.run(membership.start())
        assert gauge() == 3
        membership.begin_shutdown()
        assert gauge() == 6
        assert membership.holds_lease()
        await membership.stop()
    assert gauge() == 0
    states = [record.getMessage().split()[2:5:2] for record in caplog.records if "broker state" in record.getMessage()]
    assert [new for _, new in states] == [
        "STARTING",
        "RECOVERY",
        "RUNNING",
        "PENDING_CONTROLLED_SHUTDOWN",
        "SHUTTING_DOWN",
        "NOT_RUNNING",
    ]


async def test_heartbeats_keep_the_lease_and_follow_the_log(
    cluster: Cluster, api: FakeClusterApi, fake_clock: ManualClock
) -> None:
    api.add_topic("orders")
    api.calls.clear()
    await fake_clock.advance(60)
    assert api.calls["heartbeat"] == 20
    assert cluster.membership.holds_lease()
    assert "orders" in cluster.image.topics_by_name


async def test_heartbeats_read_the_log_only_if_it_moved(
    cluster: Cluster, api: FakeClusterApi, fake_clock: ManualClock
) -> None:
    await fake_clock.advance(3)
    api.calls.clear()
    await fake_clock.advance(30)
    assert (api.calls["heartbeat"], api.calls["read_metadata"]) == (10, 0)
    api.add_topic("orders")
    await fake_clock.advance(3)
    assert "orders" in cluster.image.topics_by_name
    assert api.calls["read_metadata"] == 1


async def test_a_heartbeat_notices_a_restored_log_of_the_same_length(
    cluster: Cluster, api: FakeClusterApi, fake_clock: ManualClock
) -> None:
    backup = len(api.log)
    api.add_topic("lost")
    await fake_clock.advance(6)
    length = len(api.log)
    del api.log[backup:]
    api.add_topic("other")
    assert len(api.log) == length
    await fake_clock.advance(3)
    assert list(cluster.image.topics_by_name) == ["other"]


async def test_the_own_deadline_counts_from_before_sending(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    cluster = an_agent(api)
    await fake_clock.run(cluster.start())
    api.latency = 10.0
    sent_at = fake_clock.monotonic() + 3
    await fake_clock.advance(14)  # sent after 3 s, answered 10 s later
    api.fail_before["heartbeat"] = [UnavailableError("down")] * 1000
    lease = sent_at + 18 - fake_clock.monotonic()
    await fake_clock.advance(lease - 0.1)
    assert cluster.membership.holds_lease()
    await fake_clock.advance(0.2)
    assert not cluster.membership.holds_lease()
    assert cluster.membership.not_ready() == NotReady("its lease ran out", METASTORE)
    assert cluster.coordinator("g") is None  # it must not take itself for a coordinator any more
    assert cluster.leader(partition_key(1, 1)) is not None  # a hint only: clients keep what they have
    await fake_clock.run(cluster.stop())


async def test_a_stale_epoch_registers_a_new_incarnation(
    cluster: Cluster, api: FakeClusterApi, fake_clock: ManualClock
) -> None:
    first_epoch = cluster.broker_epoch
    first_incarnation = api.agents[1].registration.incarnation_id
    del api.agents[1]
    api.append(FenceBrokerRecord(broker_id=1, broker_epoch=first_epoch))
    await fake_clock.advance(4)
    assert cluster.membership.state is BrokerState.RUNNING
    assert cluster.broker_epoch > first_epoch
    assert api.agents[1].registration.incarnation_id != first_incarnation
    assert not cluster.image.agents[1].fenced


async def test_a_hint_that_the_epoch_is_stale_is_followed_at_once(
    cluster: Cluster, api: FakeClusterApi, fake_clock: ManualClock
) -> None:
    first_epoch = cluster.broker_epoch
    del api.agents[1]
    cluster.membership.check_now()
    await fake_clock.advance(1)
    assert cluster.broker_epoch > first_epoch
    assert cluster.membership.state is BrokerState.RUNNING
    api.calls.clear()
    await fake_clock.advance(30)
    assert api.calls["heartbeat"] == 10


async def test_a_lost_answer_to_a_registration_registers_once(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    api.fail_after["register_agent"] = [OutcomeUnknownError("lost")]
    cluster = an_agent(api, node_id=None)
    await fake_clock.run(cluster.start())
    assert api.calls["register_agent"] == 2
    assert list(api.agents) == [cluster.node_id]
    await cluster.stop()


async def test_a_node_id_in_use_is_taken_over_when_its_lease_ran_out(
    api: FakeClusterApi, fake_clock: ManualClock
) -> None:
    gone = an_agent(api)
    await fake_clock.run(gone.start())
    assert gone.membership._heartbeats is not None
    gone.membership._heartbeats.cancel()
    successor = an_agent(api, seed=9)
    started_at = fake_clock.monotonic()
    await fake_clock.run(successor.start())
    assert 17 <= fake_clock.monotonic() - started_at <= 20
    assert successor.broker_epoch > gone.broker_epoch
    await successor.stop()


@pytest.mark.requirement("C17")
async def test_a_node_id_that_stays_in_use_ends_the_start(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    api.add_agent(1)
    started_at = fake_clock.monotonic()
    with pytest.raises(InvalidError, match="node_id=1"):
        await fake_clock.run(an_agent(api).start())
    assert fake_clock.monotonic() - started_at == pytest.approx(REGISTRATION_TIMEOUT_SECONDS, abs=2)
    assert Settings().initial_broker_registration_timeout_ms == REGISTRATION_TIMEOUT_SECONDS * 1000 == 60_000


async def test_stopping_without_the_metastore_still_stops(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    cluster = an_agent(api)
    await fake_clock.run(cluster.start())
    api.fail_before["unregister_agent"] = [UnavailableError("down")]
    await cluster.stop()
    assert cluster.membership.state is BrokerState.NOT_RUNNING
    assert 1 in api.agents  # its lease runs out instead
    running = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not [task for task in running if not task.done()]


@pytest.mark.requirement("C6")
async def test_a_controlled_shutdown_waits_until_the_others_route_around_it(
    api: FakeClusterApi, fake_clock: ManualClock
) -> None:
    leaving, other = an_agent(api, 1), an_agent(api, 2, seed=8)
    await fake_clock.run(leaving.start())
    await fake_clock.run(other.start())
    told = asyncio.create_task(leaving.membership.controlled_shutdown())
    await fake_clock.settle()
    assert not told.done()
    assert leaving.membership.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN
    assert leaving.membership.holds_lease(), "what it received can still be committed"
    began = fake_clock.monotonic()
    other.follower.poke(len(api.log))  # as the feed does within milliseconds
    assert await fake_clock.run(told)
    assert fake_clock.monotonic() - began < 1, "the other says at once that it knows"
    for cluster in (leaving, other):
        assert cluster.leader(partition_key(5, 0)) == other.image.agents[2]
        assert cluster.coordinator("g") == other.image.agents[2]
    await leaving.stop()
    await other.stop()


@pytest.mark.requirement("C6")
async def test_a_controlled_shutdown_does_not_wait_for_the_silent(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    leaving = an_agent(api, 1)
    await fake_clock.run(leaving.start())
    api.add_agent(2)
    api.agents[2].offset = 0
    began = fake_clock.monotonic()
    assert not await fake_clock.run(leaving.membership.controlled_shutdown())
    assert fake_clock.monotonic() - began == pytest.approx(6), "two heartbeats"
    await leaving.stop()


async def test_the_only_agent_may_go_at_once(cluster: Cluster, fake_clock: ManualClock) -> None:
    began = fake_clock.monotonic()
    assert await fake_clock.run(cluster.membership.controlled_shutdown())
    assert fake_clock.monotonic() == began


async def test_an_agent_that_was_fenced_and_lags_does_not_hold_its_lease_until_it_has_caught_up(
    cluster: Cluster, api: FakeClusterApi, fake_clock: ManualClock
) -> None:
    await cluster.catch_up()
    api.append(FenceBrokerRecord(broker_id=1, broker_epoch=cluster.broker_epoch))
    api.agents[1].fenced = True
    api.add_topic("wide", 200)
    api.fail_before["read_metadata"] = [UnavailableError("down")] * 100
    await fake_clock.advance(4)
    assert not cluster.membership.holds_lease()
    assert cluster.membership.not_ready() == NotReady("fenced")
    api.fail_before["read_metadata"].clear()
    await fake_clock.advance(7)
    assert cluster.membership.holds_lease()
    assert cluster.membership.not_ready() is None
    assert not api.agents[1].fenced


@pytest.mark.requirement("C14")
async def test_the_lag_of_the_image_is_a_metric(api: FakeClusterApi, fake_clock: ManualClock) -> None:
    registry = CollectorRegistry()
    membership = a_membership(api, registry=registry)
    await fake_clock.run(membership.start())
    assert registry.get_sample_value("headrace_metadata_lag_records") == 1, "it has not read that it is unfenced"
    api.add_topic("orders", 4)
    await fake_clock.advance(3)
    assert registry.get_sample_value("headrace_metadata_lag_records") == 5
    await fake_clock.advance(3)
    assert registry.get_sample_value("headrace_metadata_lag_records") == 0
    await membership.stop()
