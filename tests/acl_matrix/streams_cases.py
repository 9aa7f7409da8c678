"""Rows about streams groups: a group with a member, and a topology of two topics.

Place: under cases.py. __main__.py sends `streams_groups_in_use` first, so that there is something to hide.
Source: KIP-1071, and Kafka's KafkaApis.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from headrace.agent.access.authorization.operations import AclOperation
from headrace.protocol.api_keys import ApiKey
from tests.acl_matrix.case import GROUP_FAILED, TOPIC, Case, on_group, on_topic

STREAMS_GROUP = "acl-streams-group"


def _join() -> dict[str, Any]:
    subtopology = {"subtopology_id": "0", "source_topics": [TOPIC]}
    return {
        "group_id": STREAMS_GROUP,
        "member_id": "m",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": datetime.timedelta(minutes=5),
        "topology": {"epoch": 0, "subtopologies": [subtopology]},
        "active_tasks": [],
        "standby_tasks": [],
        "warmup_tasks": [],
        "process_id": "p",
        "task_offsets": None,
        "task_end_offsets": None,
    }


def streams_groups_in_use() -> list[tuple[ApiKey, Mapping[str, Any]]]:
    """Return the request that makes the group: a member that stays."""
    return [(ApiKey.STREAMS_GROUP_HEARTBEAT, _join())]


def streams_cases() -> list[Case]:
    """Return the rows of the APIs of streams groups."""
    describe_topic = on_topic(AclOperation.DESCRIBE)
    return [
        Case(
            "StreamsGroupHeartbeat",
            ApiKey.STREAMS_GROUP_HEARTBEAT,
            _join(),
            (*on_group(AclOperation.READ, STREAMS_GROUP), *describe_topic),
            GROUP_FAILED,
        ),
        Case(
            "StreamsGroupDescribe",
            ApiKey.STREAMS_GROUP_DESCRIBE,
            {"group_ids": [STREAMS_GROUP], "include_authorized_operations": True},
            (*on_group(AclOperation.DESCRIBE, STREAMS_GROUP), *describe_topic),
            GROUP_FAILED,
        ),
    ]
