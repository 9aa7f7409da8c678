"""Rows of the scenarios in which Headrace is meant to differ from Apache Kafka, each with both answers and the reason.

Place: test_share_scenarios.py compares with it. Users read the reasons in docs/start/COMPATIBILITY.md.
Invariant: a row stays here only while both servers still answer as it says.
"""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    """What each server answers. `row`: how the row of the table in COMPATIBILITY.md begins that says why."""

    kafka: str
    headrace: str
    row: str


_ADDED = "a share group with `latest`, and a partition that is added"
_ALTERED = "AlterShareGroupOffsets beyond the end of the log, or below 0"
_DESCRIBED = "share groups: what is described"
_FORMER = "an acknowledgement after AlterShareGroupOffsets"
_HALVES = "half of a delivery of records that failed"
_LOCKS = "`share.partition.max.record.locks` of a group"
_MARKERS = "markers of transactions in a share group"
_ONE_CONNECTION = "ShareFetch and ShareAcknowledge at an agent that is not the leader"
_RANGES = "acknowledgements with negative offsets"
_UNKNOWN = "ShareFetch for an unknown topic or group, or with an unknown acquire mode"
_UNKNOWN_GROUP = "ConsumerGroupHeartbeat and ShareGroupHeartbeat for a group that does not exist"

DOCUMENTED: dict[str, dict[str, Difference]] = {
    "acknowledge_records": {"described": Difference("start=9 lag=0", "start=10 lag=0", _DESCRIBED)},
    "releases_until_the_limit": {"described": Difference("start=2 lag=0", "start=3 lag=0", _DESCRIBED)},
    "records_are_deleted": {"described": Difference("start=7 lag=2", "start=8 lag=2", _DESCRIBED)},
    "invalid_acknowledgements": {
        "negative offset": Difference("NONE", "INVALID_REQUEST", _RANGES),
        "overlapping": Difference("NONE", "INVALID_REQUEST", _RANGES),
    },
    "fetch_limits": {"mode 2": Difference("refused: UNKNOWN_SERVER_ERROR", "refused: INVALID_REQUEST", _UNKNOWN)},
    "session_on_two_connections": {
        "another connection fetches at the next epoch": Difference(
            "2-3x1", "refused: SHARE_SESSION_NOT_FOUND", _ONE_CONNECTION
        ),
        "another connection opens a session": Difference("4-5x1", "2-3x1", _ONE_CONNECTION),
        "the first connection fetches": Difference("6-7x1", "4-5x1", _ONE_CONNECTION),
    },
    "fetch_by_no_member": {
        "before the group exists": Difference("UNKNOWN_SERVER_ERROR", "refused: GROUP_ID_NOT_FOUND", _UNKNOWN),
        "unknown topic": Difference("refused: UNKNOWN_SERVER_ERROR", "UNKNOWN_TOPIC_ID", _UNKNOWN),
        "no topic id": Difference("refused: UNKNOWN_SERVER_ERROR", "UNKNOWN_TOPIC_ID", _UNKNOWN),
        "empty group id": Difference("UNKNOWN_SERVER_ERROR", "refused: INVALID_REQUEST", _UNKNOWN),
    },
    "heartbeats": {
        "epoch 5 in an unknown group": Difference("GROUP_ID_NOT_FOUND", "UNKNOWN_MEMBER_ID", _UNKNOWN_GROUP)
    },
    "groups_of_other_types": {
        "share fetch": Difference("UNKNOWN_SERVER_ERROR", "refused: GROUP_ID_NOT_FOUND", _UNKNOWN),
    },
    "poison_by_record_limit": {"delivery 4": Difference("0-7x4", "0-3x4", _HALVES)},
    "locks_of_a_partition": {
        "fetch 2": Difference("60-119x1", "60-99x1", _LOCKS),
        "fetch 3": Difference("120-179x1", "nothing", _LOCKS),
        "fetch after it": Difference("180-239x1", "nothing", _LOCKS),
        "fetch after that": Difference("240-299x1", "100-109x1", _LOCKS),
    },
    "offsets_of_an_empty_group": {
        "alter to a negative offset": Difference("NONE", "INVALID_REQUEST", _ALTERED),
        "describe an unknown topic": Difference("start=-1 lag=-1", "UNKNOWN_TOPIC_OR_PARTITION", _DESCRIBED),
    },
    "offset_beyond_the_end": {
        "described": Difference("start=99 lag=-89", "start=10 lag=0", _ALTERED),
        "fetch after two more records": Difference("nothing nothing nothing", "10-11x1 nothing nothing", _ALTERED),
    },
    "clients_that_left_still_ask": {
        "acknowledge 0-4": Difference("NOT_LEADER_OR_FOLLOWER", "INVALID_RECORD_STATE", _FORMER),
    },
    "topic_is_deleted": {"fetch": Difference("refused: UNKNOWN_SERVER_ERROR", "UNKNOWN_TOPIC_ID", _UNKNOWN)},
    "partition_is_added": {"the new partition's first records": Difference("nothing", "0-2x1", _ADDED)},
    "isolation_changes": {"acquire after the abort": Difference("3-5x1", "3-4x1", _MARKERS)},
}
"""Differences by scenario and step."""
DOCUMENTED_OF_CONSUMERS = {"theCallbackHearsOfMarkers": _MARKERS}
"""Scenarios of ShareConsumerScenarios.java that fail on Headrace, and the rows that say why."""
