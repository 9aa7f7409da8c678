"""The topics that Kafka keeps for itself and Headrace does not have.

Place: asked where a topic is named: before it is created, described or written to.
Invariant: no topic with such a name is created, so a reader gets an error at once, not an empty topic.
Source: Kafka's org.apache.kafka.common.internals.Topic.
"""

from __future__ import annotations

INTERNAL_TOPICS = {
    "__consumer_offsets": "committed offsets are in the metastore: read them with OffsetFetch",
    "__transaction_state": "transactions are not supported",
    "__share_group_state": "share groups are not supported",
}
"""Name -> what a reader should know."""
