"""Records without a separate operation: appended at a head, gated by format, kept from breaking the log."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from headrace.metastore.api.agents import METADATA_FORMAT, SUPPORTED_FEATURES, FeatureRange, Listener
from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.log.features import change_feature
from headrace.metastore.log.kip631_records import (
    AccessControlRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
)
from headrace.metastore.log.own_records import RemoveAccessControlRecord, RemoveFeatureLevelRecord
from headrace.metastore.log.reassignment import completions, reassign
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import InvalidError, UnsupportedFeatureError, WrongClusterError
from tests.metastore.sessions import Session, beat, create, delete, join, new_agent, new_topic

ACCESS = {
    "resource_type": 2,
    "resource_name": "r",
    "pattern_type": 3,
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


async def test_records_are_appended_at_the_expected_head_only(metastore: PostgresMetastore) -> None:
    head = await metastore.cluster.metadata_head()
    given = AccessControlRecord(**ACCESS)  # type: ignore[arg-type]
    assert not await metastore.cluster.append_records(head - 1, [given])
    assert await metastore.cluster.append_records(head, [given])
    assert (await load_image(metastore.cluster)).access_controls == {given}
    assert not await metastore.cluster.append_records(head, [given]), "a repeated call finds the head moved"
    assert await metastore.cluster.append_records(head + 1, [RemoveAccessControlRecord(**ACCESS)])  # type: ignore[arg-type]
    assert (await load_image(metastore.cluster)).access_controls == frozenset()


@pytest.mark.requirement("C2")
async def test_a_record_that_the_active_format_lacks_is_refused(metastore: PostgresMetastore) -> None:
    image = await load_image(metastore.cluster)
    assert image.metadata_format == 4, "what a new cluster starts with"
    down = change_feature(image, METADATA_FORMAT, 1, allow_downgrade=True)
    assert down is not None
    assert await metastore.cluster.append_records(image.offset, [down])
    with pytest.raises(InvalidError, match="wanted=2 active=1"):
        await metastore.cluster.append_records(image.offset + 1, [RemoveAccessControlRecord(**ACCESS)])  # type: ignore[arg-type]
    assert await metastore.cluster.metadata_head() == image.offset + 1


async def test_no_agent_is_hidden_before_the_format_has_a_record_for_it(metastore: PostgresMetastore) -> None:
    one = await join(metastore, 1)
    await join(metastore, 2)
    lease = await metastore.controller.hold_controller_lease(2, uuid.uuid4(), 60_000)
    image = await load_image(metastore.cluster)
    down = change_feature(image, METADATA_FORMAT, 2, allow_downgrade=True)
    assert down is not None
    assert await metastore.cluster.append_records(image.offset, [down])
    hidden = metastore.controller.hide_agent(lease.controller_epoch, *one, session_timeout_ms=18_000)
    assert not await hidden
    assert await metastore.cluster.metadata_head() == image.offset + 1


async def test_a_cluster_from_before_formats_is_at_the_first_and_can_be_raised(
    metastore: PostgresMetastore, raw: Session
) -> None:
    await raw.execute("TRUNCATE features, metadata_log")
    await raw.execute("UPDATE metadata_head SET next_offset = 0")
    leaving = await metastore.cluster.register_agent(replace(new_agent(1), features={}))
    await join_again(metastore, leaving)
    await join(metastore, 2)
    head = await metastore.cluster.metadata_head()
    with pytest.raises(InvalidError, match="wanted=2 active=1"):
        await metastore.cluster.append_records(head, [RemoveAccessControlRecord(**ACCESS)])  # type: ignore[arg-type]
    assert (await beat(metastore, leaving, want_shut_down=True)).should_shut_down, "no record says that it leaves"
    assert await metastore.cluster.metadata_head() == head

    with pytest.raises(UnsupportedFeatureError, match="node_id=1"):
        change_feature(await load_image(metastore.cluster), METADATA_FORMAT, 2, allow_downgrade=False)
    await metastore.cluster.unregister_agent(*leaving)
    image = await load_image(metastore.cluster)
    up = change_feature(image, METADATA_FORMAT, 2, allow_downgrade=False)
    assert up is not None
    assert await metastore.cluster.append_records(image.offset, [up])
    assert (await load_image(metastore.cluster)).metadata_format == 2
    with pytest.raises(UnsupportedFeatureError, match=r"feature=metadata\.format"):
        await metastore.cluster.register_agent(replace(new_agent(1), features={}))


@pytest.mark.parametrize(
    "record",
    [
        RemoveTopicRecord(topic_id=uuid.UUID(int=1)),
        PartitionChangeRecord(partition_id=0, topic_id=uuid.UUID(int=1), leader=3),
        PartitionChangeRecord(partition_id=0, topic_id=uuid.UUID(int=1), isr=()),
        PartitionChangeRecord(partition_id=0, topic_id=uuid.UUID(int=1), replicas=(1,)),
    ],
)
async def test_records_that_would_break_log_or_projection_are_refused(
    metastore: PostgresMetastore, record: MetadataRecord
) -> None:
    head = await metastore.cluster.metadata_head()
    with pytest.raises(InvalidError, match=r"by itself|not there"):
        await metastore.cluster.append_records(head, [record])
    assert await metastore.cluster.metadata_head() == head


@pytest.mark.requirement("C9")
async def test_a_reassignment_goes_through_the_log_and_ends_with_its_topic(metastore: PostgresMetastore) -> None:
    orders = new_topic("orders", 2)
    first, second = await join(metastore, 1), await metastore.cluster.register_agent(new_agent(2))
    image = await create(metastore, orders)
    wanted = [reassign(image, orders.topic_id, 0, [first.node_id, second.node_id])]
    assert await metastore.cluster.append_records(image.offset, wanted)
    image = await load_image(metastore.cluster)
    assert image.topics_by_id[orders.topic_id].assignment(0).adding == (1, 2)
    assert completions(image) == []
    await join_again(metastore, second)
    image = await load_image(metastore.cluster)
    assert await metastore.cluster.append_records(image.offset, completions(image))
    image = await load_image(metastore.cluster)
    assert image.topics_by_id[orders.topic_id].assignment(0).replicas == (1, 2)
    assert (await delete(metastore, orders.topic_id)).topics_by_id == {}


async def join_again(metastore: PostgresMetastore, agent: tuple[int, int]) -> None:
    """Unfence who is registered."""
    head = await metastore.cluster.metadata_head()
    answer = await metastore.cluster.heartbeat(
        *agent, metadata_offset=head, want_fence=False, session_timeout_ms=18_000
    )
    assert not answer.is_fenced


@pytest.mark.requirement("C4")
async def test_an_agent_that_lacks_an_active_level_is_refused(metastore: PostgresMetastore) -> None:
    head = await metastore.cluster.metadata_head()
    level = FeatureLevelRecord(name="f", min_feature_level=1, max_feature_level=2)
    assert await metastore.cluster.append_records(head, [level])
    for own in ({}, {"f": FeatureRange(1, 1)}, {"f": FeatureRange(3, 4)}):
        with pytest.raises(UnsupportedFeatureError, match="feature=f"):
            await metastore.cluster.register_agent(replace(new_agent(), features={**SUPPORTED_FEATURES, **own}))
    with pytest.raises(UnsupportedFeatureError, match=r"feature=(cluster\.links|low\.latency|metadata\.format)"):
        await metastore.cluster.register_agent(replace(new_agent(), features={"f": FeatureRange(2, 2)}))
    able = replace(new_agent(), features={**SUPPORTED_FEATURES, "f": FeatureRange(2, 3)})
    agent = await metastore.cluster.register_agent(able)
    assert (await load_image(metastore.cluster)).agents[agent.node_id].features == able.features
    assert await metastore.cluster.append_records(head + 2, [RemoveFeatureLevelRecord(name="f")])
    await metastore.cluster.register_agent(new_agent())


@pytest.mark.requirement("C4")
async def test_an_agent_of_another_cluster_is_refused(metastore: PostgresMetastore) -> None:
    with pytest.raises(WrongClusterError, match="asked=elsewhere"):
        await metastore.cluster.register_agent(replace(new_agent(), cluster_id="elsewhere"))
    await metastore.cluster.register_agent(replace(new_agent(), cluster_id=metastore.cluster_id))


async def test_all_listeners_of_an_agent_are_in_the_log(metastore: PostgresMetastore) -> None:
    listeners = (Listener("CLIENTS", "agent", 9092, 0), Listener("TLS", "public", 9093, 1))
    agent = await metastore.cluster.register_agent(replace(new_agent(), listeners=listeners))
    assert (await load_image(metastore.cluster)).agents[agent.node_id].listeners == listeners
    with pytest.raises(InvalidError, match="first listener"):
        await metastore.cluster.register_agent(replace(new_agent(), listeners=listeners[::-1]))
