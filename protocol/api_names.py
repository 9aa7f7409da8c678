"""Names of all requests that agents serve to clients, for people: Kafka's, and our own."""

from __future__ import annotations

from headrace.protocol.api_versions import APIS
from headrace.protocol.ordered_requests import GROUP_POSITION_KEY, LEADER_EPOCHS_KEY
from headrace.protocol.scale_topic import SCALE_TOPIC_KEY
from headrace.protocol.set_partition_count import SET_PARTITION_COUNT_KEY

_OWN = {
    GROUP_POSITION_KEY: "ConsumerGroupPosition",
    LEADER_EPOCHS_KEY: "PartitionLeaderEpochsForPartitions",
    SCALE_TOPIC_KEY: "ScaleTopic",
    SET_PARTITION_COUNT_KEY: "SetPartitionCount",
}


def api_name(api_key: int) -> str:
    """`Produce` for 0; the number for one that is not known."""
    known = APIS.get(api_key)
    return _OWN.get(api_key, str(api_key)) if known is None else known.name
