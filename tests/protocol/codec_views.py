"""Requests of the hand-written codecs and of kio, brought to the same plain shape for comparison."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from headrace.protocol.fetch_codec import FetchRequest
from headrace.protocol.produce_codec import ProduceRequest
from headrace.protocol.wire import NULL_UUID

View = tuple[Any, ...]


def milliseconds(delta: timedelta) -> int:
    return round(delta.total_seconds() * 1000)


def endpoints(reply: Any) -> list[View]:
    """The agents that a response names, of either codec."""
    return [(n.node_id, n.host, n.port, n.rack) for n in reply.node_endpoints]


def _kio_topic(topic: Any, name_field: str) -> tuple[Any, Any]:
    if hasattr(topic, "topic_id"):
        return None, topic.topic_id or NULL_UUID
    return getattr(topic, name_field), None


def produce_view(request: ProduceRequest) -> View:
    topics = [
        (t.name, t.topic_id, [(p.index, None if p.records is None else bytes(p.records)) for p in t.partitions])
        for t in request.topics
    ]
    return request.transactional_id, request.acks, request.timeout_ms, topics


def kio_produce_view(request: Any) -> View:
    topics = [(*_kio_topic(t, "name"), [(p.index, p.records) for p in t.partition_data]) for t in request.topic_data]
    return request.transactional_id, request.acks, milliseconds(request.timeout), topics


def fetch_view(request: FetchRequest) -> View:
    topics = [
        (
            t.name,
            t.topic_id,
            [
                (p.index, p.fetch_offset, p.max_bytes, p.current_leader_epoch, p.last_fetched_epoch, p.log_start_offset)
                for p in t.partitions
            ],
        )
        for t in request.topics
    ]
    limits = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
    session = (request.session_id, request.session_epoch)
    forgotten = [(t.name, t.topic_id, t.partitions) for t in request.forgotten]
    return limits, session, topics, forgotten, request.rack_id, request.replica_id, request.cluster_id


def kio_fetch_view(request: Any) -> View:
    topics = [
        (
            *_kio_topic(t, "topic"),
            [
                (
                    p.partition,
                    p.fetch_offset,
                    p.partition_max_bytes,
                    getattr(p, "current_leader_epoch", -1),
                    getattr(p, "last_fetched_epoch", -1),
                    getattr(p, "log_start_offset", -1),
                )
                for p in t.partitions
            ],
        )
        for t in request.topics
    ]
    limits = (milliseconds(request.max_wait), request.min_bytes, request.max_bytes, request.isolation_level)
    session = (getattr(request, "session_id", 0), getattr(request, "session_epoch", -1))
    forgotten = [(*_kio_topic(t, "topic"), list(t.partitions)) for t in getattr(request, "forgotten_topics_data", ())]
    state = getattr(request, "replica_state", None)
    replica_id = state.replica_id if state is not None else request.replica_id
    rack_id, cluster_id = getattr(request, "rack_id", ""), getattr(request, "cluster_id", None)
    return limits, session, topics, forgotten, rack_id, replica_id, cluster_id
