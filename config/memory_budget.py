"""The memory that a process may use by its settings, part by part.

Place: pure; shown in /metrics by agent/limits/metrics.py, compared with the container's limit when a process
starts.
Invariant: each part that grows with clients or data has a limit here, but for what docs/operate/LIMITS.md says is not
bounded. Sizes of Python objects are measured ones, rounded up; what a setting counts in bytes is exact.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config.addresses import is_object_store
from headrace.config.listeners import BROKER, COMPACTOR, listeners, roles
from headrace.config.settings import Settings

MIB = 1024 * 1024
PYTHON_BYTES = 192 * MIB
"""Interpreter, libraries, code and an image of few topics: an idle agent has 150 MiB (load/benchmarks/memory.py)."""
EXTENT_BYTES = 320
"""One extent in an index, or one batch that the agent committed lately."""
EXTENTS_MAX = 2 * 65_536 + 3_000
"""Most extents in the tail index and the segment cache together, and most of these batches (agent/fetch/)."""
CONNECTION_BYTES = 8 * 1024
"""A connection without TLS; 2,000 idle ones took 6.7 KB each."""
TLS_CONNECTION_BYTES = 28 * 1024
"""A connection with TLS; 1,800 idle ones took 25 KiB each."""
TLS_HANDSHAKE_BYTES = 48 * 1024
"""One with a handshake in progress: OpenSSL has more for it; 600 unfinished ones took 48 KiB each. A silent one has no
TLS yet."""
READ_AHEAD_BYTES = 96 * MIB
"""What an agent on S3 loads ahead for readers behind the tail (agent/fetch/files/read_ahead.py)."""
SESSION_PARTITION_BYTES = 512
"""A partition of a fetch session."""
PRODUCED_BATCH_BYTES = 1_200
"""A Produce request besides its frame, and again each partition in it, until the answer: Python's objects took 2.3 KB
for a request of one batch, 3.2 KB while it waited in a task, 780 bytes for each further batch."""
REFUSED_SEQUENCES_BYTES = 8 * MIB
"""What an agent remembers of batches that it refused (agent/produce/refused_sequences.py)."""
LAST_STORED_BYTES = 6 * MIB
"""What it remembers of how the last batch of a producer came (agent/produce/last_stored.py)."""
REMEMBERED_BYTES: Mapping[str, int] = {
    "access_decisions": 8 * MIB,
    "client_traffic": 2 * MIB,
    "client_zones": MIB,
    "group_positions": 8 * MIB,
    "metadata_answers": 16 * MIB,
    "producer_names": 4 * MIB,
    "quota_clients": 6 * MIB,
    "share_states": 4 * MIB,
    "topic_patterns": 32 * MIB,
}
"""What clients make an agent remember between their requests (agent/limits/client_memory.py), by part."""
IDLE_GROUPS_BYTES = 40 * MIB
"""Groups without members: 10,000 with an id of usual length (agent/groups/held_groups.py)."""
SHARE_SESSIONS_BYTES = 24 * MIB
"""Share sessions: 78,000 partitions (agent/fetch/share/sessions.py)."""
SHARE_RECORDS_BYTES = 40 * MIB
"""Records of share groups that are in flight: 238,000 ranges (agent/groups/share/share_memory.py)."""
ALLOCATOR_BYTES = 32 * MIB
"""What the C library's heap keeps although nothing used it for a minute (cli/process/heap.py)."""
MERGE_COPIES = 3
"""A job holds inputs, records and output of a merge."""


def memory_budget(settings: Settings) -> Mapping[str, int]:
    """Bytes by part, for the roles of the process."""
    parts = {"python": PYTHON_BYTES, "allocator": ALLOCATOR_BYTES}
    if BROKER in roles(settings):
        largest_file = settings.flush_bytes + settings.socket_request_max_bytes
        parts |= {
            "produce_requests": settings.buffer_memory_bytes,
            # Its batches are in requests that wait for their answer.
            "uploads": min(settings.upload_parallelism * largest_file, settings.buffer_memory_bytes),
            "refused_sequences": REFUSED_SEQUENCES_BYTES + LAST_STORED_BYTES,
            "requests": settings.request_memory_bytes,
            "replies": settings.reply_memory_bytes,
            "fetch_cache": settings.cache_bytes,
            "read_ahead": READ_AHEAD_BYTES if is_object_store(settings.bucket) else 0,
            "extents": EXTENTS_MAX * EXTENT_BYTES,
            "fetch_sessions": settings.fetch_session_max_partitions * SESSION_PARTITION_BYTES,
            "groups": settings.group_memory_bytes,
            "idle_groups": IDLE_GROUPS_BYTES,
            "share_records": SHARE_RECORDS_BYTES,
            "share_sessions": SHARE_SESSIONS_BYTES,
            **REMEMBERED_BYTES,
            "connections": _connections_bytes(settings),
        }
    if COMPACTOR in roles(settings):
        parts["compaction"] = settings.compactor_threads * MERGE_COPIES * settings.compaction_file_bytes
    return parts


def _connections_bytes(settings: Settings) -> int:
    """All of max.connections with TLS, where a listener has it, and as many in their handshake as may be."""
    if not any(endpoint.security_protocol.has_tls for endpoint in listeners(settings).serving):
        return settings.max_connections * CONNECTION_BYTES
    shaking_hands = min(settings.max_unauthenticated_connections, settings.max_connections)
    more = TLS_HANDSHAKE_BYTES - TLS_CONNECTION_BYTES
    return settings.max_connections * TLS_CONNECTION_BYTES + shaking_hands * more


def over_container(settings: Settings, limit_bytes: int | None, processes: int = 1) -> str | None:
    """Return what to say when `processes` of them do not fit into the container; None if they do, or if it has no
    limit.
    """
    budget = sum(memory_budget(settings).values()) * processes
    if limit_bytes is None or budget <= limit_bytes:
        return None
    largest = sorted(memory_budget(settings).items(), key=lambda part: -part[1])[:3]
    return (
        f"memory may exceed the container's limit: budget={budget // MIB} MiB limit={limit_bytes // MIB} MiB"
        f" processes={processes}; lower the settings of {', '.join(name for name, _ in largest)}, or raise the limit"
    )
