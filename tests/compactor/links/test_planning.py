"""Jobs that a link has, and topics that its source is found to have."""

from __future__ import annotations

import uuid

import pytest
from prometheus_client import CollectorRegistry

from headrace.compactor.links import copy_job, discovery, turns
from headrace.compactor.links.copy_job import SourceOpener
from headrace.compactor.links.discovery import LinkTopics, found
from headrace.compactor.links.metrics import LinkMetrics
from headrace.compactor.links.planning import LinkPlanner
from headrace.config.link_configs import PASSWORD, TOPICS, TopicFilter
from headrace.jobs.kinds import LINK_COPY, LINK_TOPICS, PLAN_LINKS
from headrace.jobs.lease import Lease
from headrace.metastore.api.jobs import Job
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.sealing import Sealing
from tests.compactor.links.fake_source import FakeSource, FakeTopic
from tests.compactor.links.link_world import LINK, LinkWorld
from tests.compactor.links.source_log import SourceLog
from tests.metastore.segment_keys import with_keys
from tests.metastore.sessions import Session, claim, rows
from tests.patch import Patch

pytestmark = pytest.mark.requirement("X14")


@pytest.fixture
async def world(metastore: PostgresMetastore, metastore_url: str, raw: Session) -> LinkWorld:
    with_keys(metastore_url)
    await raw.execute("UPDATE controller SET controller_epoch = 5, deadline = 'infinity'")
    found = LinkWorld(metastore)
    await found.create()
    return found


async def _plan(world: LinkWorld) -> None:
    job = await claim(world.metastore, PLAN_LINKS.name)
    lease = Lease(world.metastore.jobs, job, world.clock, claimed_at=0, lease_ms=60_000)
    await LinkPlanner(world.metastore.links, world.metastore.jobs).handle(job, lease)
    await world.metastore.jobs.finish_job(job.token)


async def _queued(raw: Session) -> list[tuple[str, str]]:
    kinds = f"'{LINK_TOPICS.name}', '{LINK_COPY.name}'"
    query = f"SELECT kind, key FROM jobs WHERE state < 2 AND kind IN ({kinds}) ORDER BY kind, key"
    return [(str(kind), str(key)) for kind, key in await rows(raw, query)]


async def test_each_link_has_a_job_that_looks_and_one_for_each_share(world: LinkWorld, raw: Session) -> None:
    await _plan(world)
    assert await _queued(raw) == [("link-topics", LINK)]
    await world.add("orders", *[SourceLog() for _ in range(3)])
    await world.create(link__shares="2")
    await _plan(world)
    await _plan(world)
    copies = [("link-copy", f"{LINK}/0"), ("link-copy", f"{LINK}/1")]
    assert await _queued(raw) == [*copies, ("link-topics", LINK)]


async def test_a_paused_link_has_no_job(world: LinkWorld, raw: Session) -> None:
    await world.create(link__state="paused")
    await _plan(world)
    assert await _queued(raw) == []


def _source() -> FakeSource:
    source = FakeSource()
    for name in ("orders", "orders-old", "payments"):
        source.topics[name] = FakeTopic(uuid.uuid4(), [SourceLog(leader_epoch=3), SourceLog(leader_epoch=7)])
    source.topics["orders"].configs = {
        "cleanup.policy": "compact",
        "segment.ms": "a week",
        "confluent.tier.enable": "true",
        "link.name": "theirs",
        "low.latency.enable": "true",
    }
    return source


async def test_only_topics_that_the_link_names_are_found_with_configs_that_are_known_here() -> None:
    source = _source()
    report = await found(LINK, source, TopicFilter({TOPICS: "orders.*", "topics.exclude": ".*-old"}))
    (topic,) = report.topics
    assert (topic.name, topic.partition_count, topic.leader_epoch) == ("orders", 2, 7)
    assert topic.source_id == source.topics["orders"].topic_id
    assert topic.configs == {"cleanup.policy": "compact"}


async def _look(world: LinkWorld, opener: SourceOpener) -> None:
    metrics = LinkMetrics(CollectorRegistry())
    topics = LinkTopics(world.metastore, opener, world.clock, metrics)
    job: Job = await claim(world.metastore, LINK_TOPICS.name, key=LINK)
    await topics.handle(job, Lease(world.metastore.jobs, job, world.clock, claimed_at=0, lease_ms=60_000))
    await world.metastore.jobs.finish_job(job.token)


async def test_what_is_found_is_reported_and_what_goes_wrong_too(world: LinkWorld, patch: Patch) -> None:
    patch.replace(discovery, "RUN_SECONDS", 4.0)
    source = _source()
    opener = SourceOpener(Sealing(None), world.threads, lambda configs, threads: source)
    await _look(world, opener)
    assert [topic.name for topic in await world.metastore.links.found_topics()] == ["orders", "orders-old", "payments"]
    source.away = "no route to host"
    await _look(world, opener)
    (seen,) = await world.metastore.links.link_sources()
    assert (seen.cluster_id, seen.problem) == ("source", "no route to host")
    source.away, source.cluster_id = "", "another"
    await _look(world, opener)
    (seen,) = await world.metastore.links.link_sources()
    assert seen.cluster_id == "source"
    assert "another cluster answers" in seen.problem
    assert len(await world.metastore.links.found_topics()) == 3


async def test_a_secret_that_this_worker_cannot_open_is_named(world: LinkWorld, patch: Patch) -> None:
    patch.replace(discovery, "RUN_SECONDS", 4.0)
    await world.create(**{PASSWORD.replace(".", "__"): "sealed:AAAA"})
    await _look(world, SourceOpener(Sealing(None), world.threads))
    (seen,) = await world.metastore.links.link_sources()
    assert PASSWORD in seen.problem


async def test_a_job_ends_for_one_that_waits(world: LinkWorld, raw: Session, patch: Patch) -> None:
    """Without that a share of a busy worker would wait for five minutes."""
    patch.replace(copy_job, "TURN_SECONDS", 1.0)
    await world.add("orders", SourceLog(leader_epoch=1))
    wanted, began = copy_job.copy_job(LINK, 0, 1), world.clock.monotonic()
    await world.metastore.jobs.enqueue_jobs([wanted])
    job: Job = await claim(world.metastore, LINK_COPY.name, key=wanted.key)
    await world.metastore.jobs.enqueue_jobs([LINK_COPY.once("other/0")])
    assert not await turns.others_wait(world.metastore.reports, [LINK_COPY.name])
    await raw.execute("UPDATE jobs SET due_at = due_at - interval '1 minute' WHERE key = 'other/0'")
    assert await turns.others_wait(world.metastore.reports, [LINK_COPY.name])
    assert not await turns.others_wait(world.metastore.reports, [LINK_TOPICS.name])
    await world.copier.handle(job, Lease(world.metastore.jobs, job, world.clock, claimed_at=began, lease_ms=60_000))
    assert world.clock.monotonic() - began < copy_job.RUN_SECONDS
