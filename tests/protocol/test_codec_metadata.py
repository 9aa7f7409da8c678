"""The bytes of topics in a Metadata response are those that kio writes, in every version."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13.response import MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic

from headrace.protocol import metadata_codec as codec
from headrace.protocol.api_versions import APIS
from headrace.protocol.typed import Schema, schema
from headrace.protocol.wire import size_prefix
from tests.seeds import examples

METADATA = 3
VERSIONS = range(APIS[METADATA].min_version, APIS[METADATA].max_version + 1)
int32 = st.integers(-(2**31), 2**31 - 1)
nodes = st.lists(int32, max_size=200).map(tuple)
codes = st.sampled_from([ErrorCode.none, ErrorCode.leader_not_available, ErrorCode.unknown_topic_id])
partitions = st.tuples(codes, st.integers(0, 2**31 - 1), int32, int32, nodes, nodes, nodes)
texts = st.text(max_size=300).filter(lambda text: len(text.encode()) < 30_000)
shown_agents = st.tuples(int32, texts, int32, st.none() | texts)
topics = st.fixed_dictionaries(
    {
        "error_code": codes,
        "name": texts,
        "topic_id": st.none() | st.uuids(),
        "is_internal": st.booleans(),
        "partitions": st.lists(partitions, max_size=4),
        "topic_authorized_operations": int32,
    }
)


def kio_topic(served: Schema, fields: dict[str, Any]) -> Any:
    shown = tuple(
        served.make(
            MetadataResponsePartition,
            error_code=error,
            partition_index=index,
            leader_id=leader,
            leader_epoch=epoch,
            replica_nodes=replicas,
            isr_nodes=in_sync,
            offline_replicas=offline,
        )
        for error, index, leader, epoch, replicas, in_sync, offline in fields["partitions"]
    )
    return served.make(MetadataResponseTopic, **{**fields, "partitions": shown})


def own_topic(version: int, fields: dict[str, Any]) -> bytes:
    rows = [
        (int(error), index, leader, epoch, codec.replicas(version, *lists))
        for error, index, leader, epoch, *lists in fields["partitions"]
    ]
    return codec.topic(
        version,
        int(fields["error_code"]),
        fields["name"],
        fields["topic_id"],
        len(rows),
        [codec.partitions(version, rows[:1]), codec.partitions(version, rows[1:])],
        is_internal=fields["is_internal"],
        operations=fields["topic_authorized_operations"],
    )


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(25))
@given(found=st.lists(topics, max_size=3), operations=int32, agents=st.lists(shown_agents, max_size=200))
def test_a_response_in_parts_is_the_whole_response(
    version: int, found: list[dict[str, Any]], operations: int, agents: list[codec.ShownAgent]
) -> None:
    served = schema(METADATA, version)
    whole = served.response(
        brokers=tuple(
            served.make(MetadataResponseBroker, node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in agents
        ),
        cluster_id="cluster",
        controller_id=operations,
        error_code=ErrorCode.none,
        topics=tuple(kio_topic(served, each) for each in found),
        cluster_authorized_operations=operations,
    )
    parts = [
        codec.response_begin(version, agents, "cluster", operations),
        size_prefix(len(found), served.flexible),
        *(own_topic(version, each) for each in found),
        codec.response_end(version, operations),
    ]
    assert b"".join(parts) == bytes(served.encode(1, whole)[1])


@pytest.mark.parametrize("version", [version for version in VERSIONS if version >= 12])
def test_a_topic_that_was_asked_for_by_id_may_have_no_name(version: int) -> None:
    served = schema(METADATA, version)
    topic_id = uuid.UUID(int=7)
    fields = {
        "error_code": ErrorCode.unknown_topic_id,
        "name": None,
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": [],
        "topic_authorized_operations": -(2**31),
    }
    whole = served.response(
        brokers=(), cluster_id=None, controller_id=-1, topics=(kio_topic(served, fields),), error_code=ErrorCode.none
    )
    assert own_topic(version, fields) in bytes(served.encode(1, whole)[1])
