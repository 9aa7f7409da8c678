"""The projection is the log: after every change the tables say what the image says."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace
from typing import Any

import pytest

from headrace.metastore.api.agents import SUPPORTED_FEATURES, FeatureRange, RegisteredAgent
from headrace.metastore.api.cluster import StoredSnapshot
from headrace.metastore.api.topics import PartitionGrowth
from headrace.metastore.log.image import AgentImage, MetadataImage, TopicImage
from headrace.metastore.log.kip631_records import (
    ConfigRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from headrace.metastore.log.own_records import ControlledShutdownRecord, RemoveFeatureLevelRecord
from headrace.metastore.log.records import encode_record
from headrace.metastore.log.replay import apply
from headrace.metastore.log.snapshot import encode_snapshot, load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import FencedError
from tests.metastore.sessions import Session, beat, create, delete, new_agent, new_topic, rows


async def _projection(raw: Session) -> dict[str, Any]:
    return {
        "topics": await rows(
            raw,
            "SELECT topic_id, topic_number, name, initial_partition_count, undeleted_partition_count"
            " FROM topics ORDER BY topic_number",
        ),
        "partitions": await rows(raw, "SELECT partition_key, leader_epoch FROM partitions ORDER BY 1"),
        "heads": await rows(raw, "SELECT partition_key FROM partition_heads ORDER BY 1"),
        "configs": await rows(raw, "SELECT resource_type, resource_name, name, value FROM configs ORDER BY 1, 2, 3"),
        "agents": await rows(
            raw,
            "SELECT node_id, broker_epoch, incarnation_id, host, port, rack, fenced, leaving_offset IS NOT NULL"
            " FROM agents ORDER BY 1",
        ),
        "features": await rows(raw, "SELECT name, min_level, max_level FROM features ORDER BY 1"),
        "leases": await rows(raw, "SELECT node_id FROM agent_leases ORDER BY 1"),
    }


def _shown(image: MetadataImage) -> dict[str, Any]:
    topics = sorted(image.topics_by_number.values(), key=lambda topic: topic.topic_number)
    keys = [(topic.key(index), epoch) for topic in topics for index, epoch in enumerate(topic.leader_epochs)]
    return {
        "topics": [_shown_topic(topic) for topic in topics],
        "partitions": keys,
        "heads": [(key,) for key, _ in keys],
        "configs": sorted((*resource, *pair) for resource, pairs in image.configs.items() for pair in pairs.items()),
        "agents": [_shown_agent(image.agents[node_id]) for node_id in sorted(image.agents)],
        "features": sorted((name, *levels) for name, levels in image.features.items()),
        "leases": [(node_id,) for node_id in sorted(image.agents)],
    }


def _shown_topic(topic: TopicImage) -> tuple[Any, ...]:
    counts = (topic.initial_partition_count, topic.undeleted_partition_count)
    return (topic.topic_id, topic.topic_number, topic.name, *counts)


def _shown_agent(agent: AgentImage) -> tuple[Any, ...]:
    return (
        agent.node_id,
        agent.broker_epoch,
        agent.incarnation_id,
        agent.host,
        agent.port,
        agent.rack,
        agent.fenced,
        agent.leaving,
    )


async def _step(store: PostgresMetastore, image: MetadataImage, rng: random.Random, number: int) -> None:
    agents = [(agent.node_id, agent.broker_epoch) for agent in image.agents.values()]
    steps = "create create delete grow configure register beat beat leave level unregister"
    match rng.choice(steps.split()):
        case "create":
            topics = [new_topic(f"t{number}-{i}", rng.randint(1, 9), a=str(i)) for i in range(rng.randint(1, 3))]
            await create(store, *topics)
        case "delete" if image.topics_by_id:
            await delete(
                store, *rng.sample(sorted(image.topics_by_id), rng.randint(1, min(2, len(image.topics_by_id))))
            )
        case "grow" if image.topics_by_id:
            topic = rng.choice(list(image.topics_by_id.values()))
            count = len(topic.leader_epochs)
            growth = PartitionGrowth(topic.topic_id, count, count + rng.randint(1, 3))
            assert await store.topics.create_partitions(image.offset, [growth])
        case "configure":
            resource = rng.choice([(2, name) for name in image.topics_by_name] + [(4, ""), (32, "group")])
            values = [(name, rng.choice(("1", "2", None))) for name in rng.sample("abc", rng.randint(1, 3))]
            configs = [
                ConfigRecord(resource_type=resource[0], resource_name=resource[1], name=name, value=value)
                for name, value in values
            ]
            assert await store.cluster.append_records(image.offset, configs)
        case "register":
            features = {"f": FeatureRange(1, 3), **SUPPORTED_FEATURES}
            await store.cluster.register_agent(replace(new_agent(rack=rng.choice((None, "a"))), features=features))
        case "beat" if agents:
            want_fence = rng.random() < 0.4
            answer = await beat(store, RegisteredAgent(*rng.choice(agents)), want_fence=want_fence)
            assert not answer.is_fenced or want_fence or any(agent.leaving for agent in image.agents.values())
        case "leave" if agents:
            await beat(store, RegisteredAgent(*rng.choice(agents)), want_shut_down=True)
        case "level":
            level = FeatureLevelRecord(name="f", min_feature_level=1, max_feature_level=rng.randint(1, 3))
            record = rng.choice((level, RemoveFeatureLevelRecord(name="f")))
            assert await store.cluster.append_records(image.offset, [record])
        case "unregister" if agents:
            gone = rng.choice(agents)
            await store.cluster.unregister_agent(*gone)
            with pytest.raises(FencedError):
                await beat(store, RegisteredAgent(*gone))


async def _keep_snapshot(store: PostgresMetastore, image: MetadataImage) -> None:
    """Do what the active controller does now and then."""
    lease = await store.controller.hold_controller_lease(1, uuid.UUID(int=1), 1_000)
    await store.controller.save_snapshot(lease.controller_epoch, StoredSnapshot(image.offset, encode_snapshot(image)))
    await store.controller.truncate_metadata(lease.controller_epoch, 1_000)


@pytest.mark.requirement("C1", "C3", "C8")
@pytest.mark.parametrize("seed", range(3))
async def test_tables_and_image_agree_after_every_step(metastore: PostgresMetastore, raw: Session, seed: int) -> None:
    rng = random.Random(seed)
    followed = MetadataImage()
    for number in range(60):
        await _step(metastore, followed, rng, number)
        followed = apply(followed, await metastore.cluster.read_metadata(followed.offset))
        assert followed.offset == await metastore.cluster.metadata_head()
        assert await _projection(raw) == _shown(followed)
        if rng.random() < 0.1:
            await _keep_snapshot(metastore, followed)
    assert await metastore.cluster.metadata_log_start() > 0, "the log has lost its beginning meanwhile"
    assert await load_image(metastore.cluster) == followed, "a follower that was away ends with the same image"


@pytest.mark.parametrize(
    "record", [UnregisterBrokerRecord, FenceBrokerRecord, UnfenceBrokerRecord, ControlledShutdownRecord]
)
async def test_records_that_sql_makes_are_the_encoders_own(raw: Session, record: Any) -> None:
    for node_id, epoch in ((0, 0), (1, 300), (2**31 - 1, 2**63 - 1)):
        ((made,),) = await rows(
            raw, "SELECT broker_record(%s::int, %s::int, %s::bigint)", record.record_type, node_id, epoch
        )
        assert bytes(made) == encode_record(record(broker_id=node_id, broker_epoch=epoch))
