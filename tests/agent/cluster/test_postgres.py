"""Agents and controllers on a real metastore: they join, see each other, take over, and leave."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from prometheus_client import REGISTRY

from headrace.agent.cluster.controller.controller import Controller, controller_steps
from headrace.agent.cluster.controller.rounds import ControllerTimes, HeldLease
from headrace.agent.cluster.follower import MetadataFollower
from headrace.agent.cluster.membership import BrokerState
from headrace.agent.topics.topic_creation import TopicCreation
from headrace.agent.topics.topic_rules import AcceptedTopic, TopicDefaults, WantedTopic
from headrace.metastore.api.jobs import JobSchedule, JobState
from headrace.metastore.log.image import Assignment
from headrace.metastore.log.reassignment import reassign
from headrace.metastore.log.snapshot import load_image, load_snapshot
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from load.contexts import a_context
from tests.agent.cluster.made_agents import an_agent_on
from tests.metastore.sessions import beat, create, new_agent, new_topic


async def test_agents_meet_in_the_log(metastore: PostgresMetastore) -> None:
    one, two = an_agent_on(metastore, None, 1), an_agent_on(metastore, 7, 2)
    await one.start()
    await two.start()
    assert two.node_id == 7
    assert one.node_id not in (-1, 7)
    await one.catch_up()
    assert one.image == two.image
    assert {a.node_id for a in one.image.live_agents()} == {one.node_id, 7}
    assert one.coordinator("g") == two.coordinator("g")
    await two.stop()
    await one.catch_up()
    assert [a.node_id for a in one.image.live_agents()] == [one.node_id]
    await one.stop()
    assert one.membership.state is BrokerState.NOT_RUNNING


@pytest.mark.requirement("C1")
async def test_topics_of_two_agents_never_take_one_name(metastore: PostgresMetastore) -> None:
    clusters = [an_agent_on(metastore, None, seed) for seed in (1, 2)]
    creations = [
        TopicCreation(cluster, metastore.topics, SystemClock(), random.Random(n), lambda: TopicDefaults(2, 1))
        for n, cluster in enumerate(clusters)
    ]
    judgements = []
    for creation in creations:
        wanted = [WantedTopic("orders", creation.new_topic_id(), configs=[("retention.ms", "1000")])]
        judgements += await creation.create(wanted, deadline=SystemClock().monotonic() + 10)
    assert [isinstance(judged, AcceptedTopic) for judged in judgements] == [True, False]
    image = await clusters[0].catch_up()
    assert image == clusters[1].image
    assert image.topic_configs("orders") == {"retention.ms": "1000"}
    assert len(image.topics_by_name["orders"].leader_epochs) == 2


def a_controller(metastore: PostgresMetastore, node_id: int) -> tuple[Controller, MetadataFollower]:
    follower = MetadataFollower(metastore.cluster)
    context = a_context(metastore, SystemClock(), rng=random.Random(node_id))
    times = ControllerTimes(lease_ms=300, session_timeout_ms=1_000, snapshot_interval_ms=1, snapshot_bytes=1)
    controller = Controller(
        context,
        follower,
        lambda: times,
        controller_steps(context, follower, lambda: times, lambda image: [JobSchedule("retention", 3_600_000)]),
        held=HeldLease(context.clock),
        node_id=lambda: node_id,
    )
    controller.start()
    return controller, follower


async def _until(holds: Callable[[], bool]) -> None:
    """The database's clock is real here; a thousandth part of the limit is usual."""
    for _ in range(9_000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within 90 s")


async def _the_active(*controllers: Controller) -> Controller:
    """The one that all of them name. Their leases are short: any pause may have changed it meanwhile."""
    found: list[Controller] = []

    def agreed() -> bool:
        found[:] = [each for each in controllers if each.is_active]
        return len(found) == 1 and len({each._held.controller_id for each in controllers}) == 1

    await _until(agreed)
    return found[0]


@pytest.mark.slow
@pytest.mark.requirement("C5", "C9", "C15")
async def test_a_standby_takes_over_and_finishes_what_the_first_one_left(metastore: PostgresMetastore) -> None:
    followers = dict(a_controller(metastore, node_id) for node_id in (1, 2))
    first = await _the_active(*followers)
    (second,) = followers.keys() - {first}
    follower = followers[second]
    for task in first._tasks:
        task.cancel()  # a kill: nothing is resigned

    orders = new_topic("orders", 2)
    image = await create(metastore, orders)
    agent = await metastore.cluster.register_agent(new_agent(7))
    image = await load_image(metastore.cluster)
    assert await metastore.cluster.append_records(image.offset, [reassign(image, orders.topic_id, 1, [7])])
    await _until(lambda: second.is_active and orders.topic_id in follower.image.topics_by_id)
    assert follower.image.topics_by_id[orders.topic_id].assignment(1).under_way, "7 is not live yet"
    while follower.image.topics_by_id[orders.topic_id].assignment(1) != Assignment((7,)):
        assert not (await beat(metastore, agent)).is_fenced
        await asyncio.sleep(0.01)
    await _until(lambda: follower.image.live_agents() == [])  # it was not heard again
    assert 7 in follower.image.agents
    snapshot = await metastore.cluster.newest_snapshot()
    assert snapshot is not None
    assert load_snapshot(snapshot.data).offset == snapshot.end_offset
    await second.stop()
    assert await metastore.controller.describe_controller() is None


@pytest.mark.requirement("C15")
async def test_a_periodic_job_remains_after_its_controller_has_left(metastore: PostgresMetastore) -> None:
    """Claimed under one controller, it is finished under the next, and comes again one period later, not at once."""
    first, _ = a_controller(metastore, 1)
    job = None
    while job is None:
        job = await metastore.jobs.claim_job("worker", ["retention"], 60_000)
        await asyncio.sleep(0.01)
    for task in first._tasks:
        task.cancel()  # a kill: nothing is resigned
    scheduled = _calls("schedule_jobs")
    second, _ = a_controller(metastore, 2)
    await _until(lambda: second.is_active and _calls("schedule_jobs") > scheduled)
    assert [(j.kind, j.job_id, j.state) for j in await metastore.reports.list_jobs(10)] == [
        ("retention", job.token.job_id, JobState.LEASED)
    ]
    await metastore.jobs.finish_job(job.token)
    await second.stop()
    scheduled = _calls("schedule_jobs")
    third, _ = a_controller(metastore, 3)
    await _until(lambda: third.is_active and _calls("schedule_jobs") > scheduled)
    assert await metastore.jobs.claim_job("worker", ["retention"], 60_000) is None
    assert [(j.job_id, j.state) for j in await metastore.reports.list_jobs(10)] == [
        (job.token.job_id, JobState.WAITING)
    ]
    await third.stop()


def _calls(operation: str) -> float:
    sample = "headrace_metastore_call_seconds_count"
    return REGISTRY.get_sample_value(sample, {"operation": operation}) or 0.0
