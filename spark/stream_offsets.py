"""The offsets of a stream, as Spark writes them into its checkpoint. Pure.

    {"orders": {"topicId": "018f…", "offsets": {"0": 23, "1": 7}}}

Place: between scan's offsets and the JSON of Spark.
Invariant: offsets belong to one incarnation of a topic: a topic that was deleted and created again has another id, so
its records are neither skipped nor taken for the old ones. Stored: fields may be added, none changes its meaning.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple


class StreamPartition(NamedTuple):
    """A partition as the checkpoint names it."""

    topic: str
    topic_id: uuid.UUID
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


StreamOffsets = dict[StreamPartition, int]


def to_json(offsets: Mapping[StreamPartition, int]) -> dict[str, Any]:
    """Return the JSON that Spark stores; equal offsets give equal JSON."""
    found: dict[str, Any] = {}
    for partition, offset in sorted(offsets.items()):
        topic = found.setdefault(partition.topic, {"topicId": str(partition.topic_id), "offsets": {}})
        topic["offsets"][str(partition.partition)] = offset
    return found


def from_json(document: Mapping[str, Any]) -> StreamOffsets:
    """Return what `to_json` made."""
    return {
        StreamPartition(name, uuid.UUID(topic["topicId"]), int(index)): offset
        for name, topic in document.items()
        for index, offset in topic["offsets"].items()
    }
