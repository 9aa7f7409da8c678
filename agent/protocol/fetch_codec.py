"""Fetch (API key 1), versions 4-18, by hand: it is the product, and record bytes must not be copied.

Place: first and last step of the read path: a request's body becomes fields, a reply becomes a
gather list in which record bytes stand as they were read.
Invariant: an empty partition carries zero-length records, never null (librdkafka and kafka-python
fail on null). No length is believed before it is checked. If the process dies here nothing is lost.
Source: Kafka's FetchRequest.json and FetchResponse.json; KIP-227 (sessions, v7), KIP-392 (rack, v11),
KIP-516 (topic ids, v13), KIP-903 (replica state, v15), KIP-951 (leader hints: v12, endpoints v16).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.protocol.wire import NO_TAGS, LeaderHint, NodeEndpoint, Tags


@dataclass(slots=True)
class FetchPartition:
    """Where a reader wants to go on. -1 stands for what the version lacks or the client did not say."""

    index: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


@dataclass(slots=True)
class FetchTopic:
    """`name` up to v12, `topic_id` from v13: the other one is None. `tags` are the topic's tagged fields, unread."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: list[FetchPartition]
    tags: Tags = NO_TAGS


@dataclass(slots=True)
class ForgottenTopic:
    """Partitions that an incremental fetch takes out of its session."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: list[int]


@dataclass(slots=True)
class FetchRequest:
    """`session_id` 0 and `session_epoch` -1 for a client without sessions; `replica_id` -1 for a consumer."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    topics: list[FetchTopic]
    session_id: int = 0
    session_epoch: int = -1
    forgotten: list[ForgottenTopic] = field(default_factory=list)
    rack_id: str = ""
    replica_id: int = -1
    cluster_id: str | None = None


@dataclass(slots=True)
class AbortedTransaction:
    producer_id: int
    first_offset: int


@dataclass(slots=True)
class EpochEnd:
    """Where an epoch ended: tells a reader from which offset on it diverged."""

    epoch: int
    end_offset: int


@dataclass(slots=True)
class FetchPartitionReply:
    """`records`: whole batches in offset order, as buffers that are sent untouched; may be empty."""

    index: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Sequence[bytes | memoryview] = ()
    aborted_transactions: list[AbortedTransaction] | None = None
    preferred_read_replica: int = -1
    diverging_epoch: EpochEnd | None = None
    current_leader: LeaderHint | None = None


@dataclass(slots=True)
class FetchTopicReply:
    """Named as the request named it."""

    name: str | None
    topic_id: uuid.UUID | None
    partitions: list[FetchPartitionReply]


@dataclass(slots=True)
class FetchReply:
    """`error_code` and `session_id` exist from v7; `node_endpoints` from v16."""

    topics: list[FetchTopicReply]
    error_code: int = 0
    session_id: int = 0
    throttle_time_ms: int = 0
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)
