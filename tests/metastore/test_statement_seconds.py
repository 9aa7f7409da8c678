"""Every call to the metastore is timed: the latency and rate of commits to the metadata log (C14)."""

from __future__ import annotations

import uuid

import pytest
from prometheus_client import REGISTRY

from headrace.metastore.api.agents import METADATA_FORMAT
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.log.kip631_records import FeatureLevelRecord
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import InvalidError
from tests.metastore.sessions import join


def _calls(operation: str) -> float:
    sample = "headrace_metastore_call_seconds_count"
    return REGISTRY.get_sample_value(sample, {"operation": operation}) or 0.0


@pytest.mark.requirement("C14")
async def test_every_append_to_the_metadata_log_is_timed(metastore: PostgresMetastore) -> None:
    operations = (
        "register_agent",
        "heartbeat_at",
        "create_topics",
        "delete_topics",
        "append_records",
        "unregister_agent",
    )
    before = {operation: _calls(operation) for operation in operations}
    agent = await join(metastore)
    topic = NewTopic("t", uuid.uuid4(), 1, {})
    assert await metastore.topics.create_topics(await metastore.cluster.metadata_head(), [topic])
    assert await metastore.topics.delete_topics(await metastore.cluster.metadata_head(), [topic.topic_id])
    level = FeatureLevelRecord(name=METADATA_FORMAT, min_feature_level=1, max_feature_level=2)
    assert await metastore.cluster.append_records(await metastore.cluster.metadata_head(), [level])
    await metastore.cluster.unregister_agent(*agent)
    after = {operation: _calls(operation) for operation in operations}
    assert all(after[operation] > before[operation] for operation in operations), (before, after)


async def test_a_call_that_fails_is_timed_too(metastore: PostgresMetastore) -> None:
    before = _calls("delete_topics")
    with pytest.raises(InvalidError):
        await metastore.topics.delete_topics(await metastore.cluster.metadata_head(), [uuid.uuid4()])
    assert _calls("delete_topics") == before + 1
