"""Rows of the scenarios in which Headrace is meant to differ from Apache Kafka, each with both answers and the reason.

Place: test_share_scenarios.py compares with it. Users read the reasons in docs/start/COMPATIBILITY.md and
docs/operate/GROUPS.md.
Invariant: a row stays here only while both servers still answer as it says.
"""

from __future__ import annotations

from typing import NamedTuple


class Difference(NamedTuple):
    """What each server answers, and why Headrace answers otherwise."""

    kafka: str
    headrace: str
    reason: str


_STORED_START = "Kafka describes the start offset that it stored last, Headrace the present one"
_INVALID_RANGES = "ranges that overlap or begin below 0 are refused, not applied in part"
_UNKNOWN = "Kafka answers with an error of the server, Headrace with the one that says what is unknown"
_ONE_CONNECTION = "a share session is of one connection and ends with it"
_UNKNOWN_GROUP = "a group that does not exist, or is no share group, is refused"
_LEAVING = (
    "a member that leaves releases its records at once; on Kafka they wait for the end of the session or the lock"
)
_LOCKS = "Kafka 4.3 ignores a group's share.partition.max.record.locks below that of the broker"
_BEYOND = "an offset beyond the end of the log counts as the end"
_MARKERS = "markers of transactions are no records: they are not acquired"
_ADDED = "an added partition is read from its first record, whatever share.auto.offset.reset says"
_FORMER = "the group's offsets changed after the acquisition"
_MODE = "an acquire mode that does not exist is an invalid request"
_NEGATIVE = "an offset below 0 is refused"

DOCUMENTED: dict[str, dict[str, Difference]] = {
    "acknowledge_records": {"described": Difference("start=9 lag=0", "start=10 lag=0", _STORED_START)},
    "releases_until_the_limit": {"described": Difference("start=2 lag=0", "start=3 lag=0", _STORED_START)},
    "records_are_deleted": {"described": Difference("start=7 lag=2", "start=8 lag=2", _STORED_START)},
    "invalid_acknowledgements": {
        "negative offset": Difference("NONE", "INVALID_REQUEST", _INVALID_RANGES),
        "overlapping": Difference("NONE", "INVALID_REQUEST", _INVALID_RANGES),
    },
    "fetch_limits": {"mode 2": Difference("refused: UNKNOWN_SERVER_ERROR", "refused: INVALID_REQUEST", _MODE)},
    "session_on_two_connections": {
        "another connection fetches at the next epoch": Difference(
            "2-3x1", "refused: SHARE_SESSION_NOT_FOUND", _ONE_CONNECTION
        ),
        "another connection opens a session": Difference("4-5x1", "2-3x1", _ONE_CONNECTION),
        "the first connection fetches": Difference("6-7x1", "4-5x1", _ONE_CONNECTION),
    },
    "fetch_by_no_member": {
        "before the group exists": Difference("UNKNOWN_SERVER_ERROR", "refused: GROUP_ID_NOT_FOUND", _UNKNOWN_GROUP),
        "unknown topic": Difference("refused: UNKNOWN_SERVER_ERROR", "UNKNOWN_TOPIC_ID", _UNKNOWN),
        "no topic id": Difference("refused: UNKNOWN_SERVER_ERROR", "UNKNOWN_TOPIC_ID", _UNKNOWN),
        "empty group id": Difference("UNKNOWN_SERVER_ERROR", "refused: INVALID_REQUEST", _UNKNOWN_GROUP),
    },
    "heartbeats": {
        "epoch 5 in an unknown group": Difference(
            "GROUP_ID_NOT_FOUND", "UNKNOWN_MEMBER_ID", "a Java consumer joins again instead of ending"
        )
    },
    "groups_of_other_types": {
        "share fetch": Difference("UNKNOWN_SERVER_ERROR", "refused: GROUP_ID_NOT_FOUND", _UNKNOWN_GROUP),
        "describe its share offsets": Difference("NONE, 0 topics", "GROUP_ID_NOT_FOUND, 0 topics", _UNKNOWN_GROUP),
    },
    "leave_without_closing_the_session": {
        "accept 0": Difference("NONE", "INVALID_RECORD_STATE", _LEAVING),
        "another fetches": Difference("nothing", "0-2x2", _LEAVING),
    },
    "locks_of_a_partition": {
        "fetch 2": Difference("60-119x1", "60-99x1", _LOCKS),
        "fetch 3": Difference("120-179x1", "nothing", _LOCKS),
        "fetch after it": Difference("180-239x1", "nothing", _LOCKS),
        "fetch after that": Difference("240-299x1", "100-109x1", _LOCKS),
    },
    "offsets_of_unknown_groups": {
        "describe": Difference("NONE, 0 topics", "GROUP_ID_NOT_FOUND, 0 topics", _UNKNOWN_GROUP)
    },
    "offsets_of_an_empty_group": {
        "alter to a negative offset": Difference("NONE", "INVALID_REQUEST", _NEGATIVE),
        "describe an unknown topic": Difference("start=-1 lag=-1", "UNKNOWN_TOPIC_OR_PARTITION", _UNKNOWN),
    },
    "offset_beyond_the_end": {
        "described": Difference("start=99 lag=-89", "start=10 lag=0", _BEYOND),
        "fetch after two more records": Difference("nothing nothing nothing", "10-11x1 nothing nothing", _BEYOND),
    },
    "clients_that_left_still_ask": {
        "acknowledge 0-4": Difference("NOT_LEADER_OR_FOLLOWER", "INVALID_RECORD_STATE", _FORMER),
    },
    "topic_is_deleted": {"fetch": Difference("refused: UNKNOWN_SERVER_ERROR", "UNKNOWN_TOPIC_ID", _UNKNOWN)},
    "partition_is_added": {"the new partition's first records": Difference("nothing", "0-2x1", _ADDED)},
    "isolation_changes": {"acquire after the abort": Difference("3-5x1", "3-4x1", _MARKERS)},
}
"""By scenario and step."""
