"""What the offsets of a share group say about a topic that the client may not describe: nothing."""

from __future__ import annotations

import uuid
from importlib import import_module

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.rules.offsets import _hidden


@pytest.mark.parametrize("version", [0, 1])
def test_a_hidden_topic_has_neither_offset_nor_lag(version: int) -> None:
    types = import_module(f"kio.schema.describe_share_group_offsets.v{version}.response")
    more = {"lag": 9} if version else {}
    part = types.DescribeShareGroupOffsetsResponsePartition(
        partition_index=2, start_offset=7, leader_epoch=5, error_code=ErrorCode.none, error_message=None, **more
    )
    topic = types.DescribeShareGroupOffsetsResponseTopic(topic_name="t", topic_id=uuid.UUID(int=4), partitions=(part,))
    hidden = _hidden(topic)
    assert hidden.topic_id is None
    (found,) = hidden.partitions
    assert (found.partition_index, found.start_offset, found.leader_epoch) == (2, -1, 0)
    assert found.error_code is ErrorCode.topic_authorization_failed
    assert getattr(found, "lag", -1) == -1
