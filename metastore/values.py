"""What crosses the metastore's boundary: plain frozen values, no rows, cursors or sessions.

Units: positions and lengths in bytes, times in milliseconds since the epoch on the database's
clock, offsets in records. `partition_key` as in metastore/keys.py.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple


class StagedBatch(NamedTuple):
    """One batch of a stored segment file, waiting for its offset."""

    partition_key: int
    position: int
    length: int
    record_count: int
    """lastOffsetDelta + 1."""
    max_timestamp: int
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    leader_epoch: int = -1
    """The epoch under which the agent accepted it; -1 skips the check."""
    partition_count: int = -1
    """The topic's undeleted partition count that the client chose the partition by; -1 if it sent none."""


@dataclass(frozen=True, slots=True)
class FileCommit:
    """A segment file that the bucket holds whole. Batches stand in file order."""

    file_id: uuid.UUID
    size: int
    batches: list[StagedBatch]


class FileStatus(enum.IntEnum):
    """What became of a file in a commit call."""

    COMMITTED = 0
    """Its batches were judged; also when this very commit had happened before (the same answer again)."""
    AGENT_FENCED = 1
    """Nothing happened: (node id, broker epoch) is not registered, or fenced."""
    CONDEMNED = 2
    """Nothing happened, and never will: the sweeper owns this id."""
    TOO_OLD = 3
    """Nothing happens under this id any more: it was born before answers are kept."""


class BatchOutcome(enum.IntEnum):
    """What became of a batch of a committed file. Numbers are stored: never reuse one."""

    APPENDED = 0
    DUPLICATE = 1
    """One of the producer's last 5 batches: base_offset and append time are the original's."""
    OUT_OF_ORDER = 2
    PRODUCER_FENCED = 3
    UNKNOWN_PARTITION = 4
    PARTITION_COUNT_MISMATCH = 5
    LEADER_EPOCH_MISMATCH = 6


class BatchAnswer(NamedTuple):
    outcome: BatchOutcome
    base_offset: int
    """-1 unless APPENDED or DUPLICATE."""
    append_time_ms: int
    """max_timestamp of the batch as it was first appended; -1 unless APPENDED or DUPLICATE."""


@dataclass(frozen=True, slots=True)
class FileAnswer:
    """`batches[i]` answers `FileCommit.batches[i]`; empty unless COMMITTED."""

    file_id: uuid.UUID
    status: FileStatus
    batches: list[BatchAnswer] = field(default_factory=list)


class Extent(NamedTuple):
    """A run of consecutive live batches of one partition inside one segment file."""

    partition_key: int
    base_offset: int
    last_offset: int
    file_id: uuid.UUID
    position: int
    length: int
    leader_epoch: int
    max_timestamp: int


class ExtentQuery(NamedTuple):
    """Extents of a partition from the one that holds `offset` on, up to about `max_bytes` but at least one."""

    partition_key: int
    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionExtents:
    """Answer to one ExtentQuery, read from the primary. `known` is False for a deleted partition."""

    partition_key: int
    known: bool
    log_start_offset: int
    high_watermark: int
    extents: list[Extent]


class FeedKind(enum.IntEnum):
    """What a feed row announces. Numbers are stored: never reuse one."""

    COMMIT = 0
    LOG_START = 1
    SWAP = 2
    TOPIC_DELETED = 3


class LogStartMove(NamedTuple):
    partition_key: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class FeedRow:
    """One numbered change of one commit shard. Rows of a shard have no gaps in `seq`."""

    shard: int
    seq: int
    kind: FeedKind
    extents: list[Extent] = field(default_factory=list)
    """COMMIT: what it appended. SWAP: what now covers the same offsets."""
    log_starts: list[LogStartMove] = field(default_factory=list)
    deleted_keys: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FeedPage:
    """Rows after the asked positions, per shard in seq order. `incarnation_id` names the metastore's life.

    `lost_shards`: rows after the asked position are no longer kept (or the feed went back): drop
    what the index holds of that shard and go on from `heads[shard]`.
    `wall_ms` is the database's clock when it answered.
    """

    incarnation_id: uuid.UUID
    wall_ms: int
    heads: dict[int, int]
    rows: list[FeedRow]
    lost_shards: list[int]
    metadata_offset: int
    """The next offset of the metadata log: a follower that is behind it reads on."""


class OffsetKind(enum.IntEnum):
    """The special timestamps of ListOffsets."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3


class OffsetQuery(NamedTuple):
    """`timestamp`: an OffsetKind, or milliseconds since the epoch."""

    partition_key: int
    timestamp: int


class OffsetAnswer(NamedTuple):
    """`extent` is set for a timestamp (and MAX_TIMESTAMP) look-up: the first extent whose max_timestamp

    reaches it; the caller opens it to find the record. Otherwise `offset` is the answer.
    """

    known: bool
    offset: int
    leader_epoch: int
    extent: Extent | None


class FeatureRange(NamedTuple):
    """The levels of a feature, both ends included: those an agent supports, or those a cluster uses."""

    min_level: int
    max_level: int


METADATA_FORMAT = "metadata.format"
"""The feature that says which records may be written (metastore/log/features.py)."""
SUPPORTED_FEATURES: Mapping[str, FeatureRange] = MappingProxyType({METADATA_FORMAT: FeatureRange(1, 2)})
"""What this version of the software supports."""


class Listener(NamedTuple):
    """Where an agent is reached. `security_protocol`: Kafka's number, 0 is PLAINTEXT."""

    name: str
    host: str
    port: int
    security_protocol: int


@dataclass(frozen=True, slots=True)
class AgentRegistration:
    """What an agent says of itself when it starts. `node_id` None asks for a leased one (C16)."""

    node_id: int | None
    incarnation_id: uuid.UUID
    host: str
    port: int
    """Of the listener that clients are sent to."""
    rack: str | None
    cluster_id: str | None = None
    """Refused when it is another cluster's; None where the caller took it from this very metastore."""
    features: Mapping[str, FeatureRange] = field(default_factory=lambda: SUPPORTED_FEATURES)
    listeners: tuple[Listener, ...] = ()
    """All of them, the one of `host` and `port` first; none: that one alone, PLAINTEXT."""


class RegisteredAgent(NamedTuple):
    node_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """What the cluster knows of the agent after its heartbeat."""

    is_caught_up: bool
    """It has applied its own registration and is no more than metadata.max.lag.records behind the head."""
    is_fenced: bool
    should_shut_down: bool
    """It asked for a controlled shutdown, and every other live agent follows a log that says so."""
    metadata_head: int
    """The next offset of the metadata log."""
    controller_id: int
    """The active controller's node id; -1 while there is none."""


class ControllerLease(NamedTuple):
    """Who the active controller is. `is_own`: whoever asked."""

    controller_id: int
    controller_epoch: int
    is_own: bool


class StoredSnapshot(NamedTuple):
    """`data` is a whole snapshot file (metastore/log/snapshot.py) that replaces the log below `end_offset`."""

    end_offset: int
    data: bytes


class SnapshotState(NamedTuple):
    """How far the newest snapshot lags: `end_offset` 0 and `age_ms` since the first record when there is none."""

    end_offset: int
    age_ms: int
    log_records: int
    log_bytes: int


class NewTopic(NamedTuple):
    """A topic to create. `preferred`: node ids for each partition in turn, best first; empty: nobody is."""

    name: str
    topic_id: uuid.UUID
    partition_count: int
    configs: dict[str, str]
    preferred: Sequence[Sequence[int]] = ()
