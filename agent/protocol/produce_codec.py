"""Produce (API key 0), versions 0-13, by hand: it is the product, and record bytes must not be copied.

Place: first and last step of the write path: a request's body becomes fields, a reply becomes buffers.
Invariant: `records` is a window into the frame; no length is believed before it is checked, nothing
is allocated by a count that the bytes do not back. If the process dies here nothing is lost.
Source: Kafka's ProduceRequest.json and ProduceResponse.json; KIP-467 (record errors), KIP-951 (leader
hints, v10), KIP-516 (topic ids, v13). Versions 0-2 are read only in order to be refused by name.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from agent.protocol.wire import NO_TAGS, LeaderHint, NodeEndpoint, Tags

NO_OFFSET = -1


@dataclass(slots=True)
class ProducePartition:
    """What one partition gets. `records` holds zero or more record batches; None when the client sent null."""

    index: int
    records: memoryview | None


@dataclass(slots=True)
class ProduceTopic:
    """`name` up to v12, `topic_id` from v13: the other one is None. `tags` are the topic's tagged fields, unread."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: list[ProducePartition]
    tags: Tags = NO_TAGS


@dataclass(slots=True)
class ProduceRequest:
    """`acks` is -1, 0 or 1 (anything else is the handler's to refuse); with 0 nothing is answered."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


@dataclass(slots=True)
class RecordError:
    """Which record (its index in the batch) made the batch fail, v8+."""

    batch_index: int
    message: str | None = None


@dataclass(slots=True)
class ProducePartitionReply:
    """`error_code` from agent/protocol/errors.py. `log_append_time_ms` is -1 unless the topic stamps LogAppendTime."""

    index: int
    error_code: int = 0
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = -1
    log_start_offset: int = NO_OFFSET
    record_errors: list[RecordError] = field(default_factory=list)
    error_message: str | None = None
    current_leader: LeaderHint | None = None


@dataclass(slots=True)
class ProduceTopicReply:
    """Named as the request named it."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: list[ProducePartitionReply]


@dataclass(slots=True)
class ProduceReply:
    """`node_endpoints`: where the leaders named in `current_leader` listen (v10+)."""

    topics: list[ProduceTopicReply]
    throttle_time_ms: int = 0
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)
