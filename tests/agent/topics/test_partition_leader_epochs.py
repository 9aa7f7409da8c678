"""PartitionLeaderEpochsForPartitions from the image; the group epoch and Metadata's counts see marks."""

from __future__ import annotations

import uuid
from dataclasses import replace
from types import MappingProxyType

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.topics.metadata.metadata_response import CountsOfTopics
from headrace.agent.topics.metadata.routing_requests import PartitionLeaderEpochs
from headrace.config.settings import Settings
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.kip631_records import TOPIC_RESOURCE
from headrace.metastore.partitions.topic_partitions import CreatedFrom
from headrace.protocol.ordered_requests import (
    LEADER_EPOCHS_KEY,
    PartitionEpochs,
    decode_epochs_response,
    encode_epochs_request,
)
from headrace.protocol.partition_counts import TopicCounts
from headrace.protocol.request import CloseConnection
from tests.agent.client_calls import a_request
from tests.agent.cluster.standing_view import StandingView

TOPIC = TopicImage(
    uuid.UUID(int=7),
    7,
    "t",
    2,
    5,
    (3, 3, 3, 2, 2, 1, 1),
    created_from={4: CreatedFrom(0, 1), 6: CreatedFrom(2, 1)},
    before_deletion={6: {2: 2, 0: 1}},
    removed=frozenset({5}),
)


def a_view(image_topics: tuple[TopicImage, ...], head_topics: tuple[TopicImage, ...]) -> StandingView:
    view = StandingView(4, node_id=1, broker_epoch=1)
    view.image, view.head = (
        MetadataImage(offset=number, topics_by_name=MappingProxyType({topic.name: topic for topic in topics}))
        for number, topics in enumerate((image_topics, head_topics))
    )
    return view


async def ask(view: StandingView, *indexes: int) -> list[PartitionEpochs]:
    request = a_request(LEADER_EPOCHS_KEY, 0, encode_epochs_request({"t": list(indexes)}))
    response = await PartitionLeaderEpochs(view)(request)
    assert response.buffers is not None
    return list(decode_epochs_response(memoryview(b"".join(response.buffers))[4:])["t"])


@pytest.mark.requirement("P5")
async def test_what_a_partition_was_created_from_and_the_epochs_before_its_mark() -> None:
    assert await ask(a_view((TOPIC,), (TOPIC,)), 0, 4, 6, 5, 9) == [
        PartitionEpochs(0),
        PartitionEpochs(4, 0, 0, 1),
        PartitionEpochs(6, 0, 2, 1, 2, {0: 1, 2: 2}),
        PartitionEpochs(5, ErrorCode.unknown_topic_or_partition),
        PartitionEpochs(9, ErrorCode.unknown_topic_or_partition),
    ]


@pytest.mark.requirement("P5")
async def test_a_partition_is_unknown_only_at_the_head_of_the_log() -> None:
    assert await ask(a_view((), (TOPIC,)), 4) == [PartitionEpochs(4, 0, 0, 1)]


async def test_another_version_closes_the_connection() -> None:
    with pytest.raises(CloseConnection):
        await PartitionLeaderEpochs(a_view((), ()))(a_request(LEADER_EPOCHS_KEY, 1, b""))


@pytest.mark.requirement("P5", "P8")
def test_counts_marks_and_the_two_configs() -> None:
    counts = CountsOfTopics(EffectiveConfigs(Settings()))
    assert counts(MetadataImage(), TOPIC) == TopicCounts(TOPIC.topic_id, 2, 5, (6,), True, False)
    configs = {(TOPIC_RESOURCE, "t"): {"enable.ordered.delivery": "false", "cleanup.policy": "compact"}}
    image = MetadataImage(configs=configs)
    assert counts(image, TOPIC) == TopicCounts(TOPIC.topic_id, 2, 5, (6,), False, True)
    unstated = replace(TOPIC, initial_partition_count=-1, undeleted_partition_count=-1)
    assert counts(MetadataImage(), unstated)[:3] == (TOPIC.topic_id, 7, 7)
