"""The states of segments or partitions by their keys: which change may follow which.

Place: asked before a lifecycle record is written and when a foreign one is read. A key is written with each record,
and read back from a topic or an argument.
Invariant of keys: a key has exactly one text, and `parse_key` accepts no other: two texts that name one key would
survive compaction side by side.
Source: KAFKA-20033, "Message Key and Value".
  segment           base64url(topicId):partition:endOffset:brokerLeaderEpoch
  delete marker     base64url(topicId):partition
Invariant: an illegal change raises IllegalTransitionError, which names key, uuid and both states; it changes
nothing.

  COPY_SEGMENT_STARTED ──► COPY_SEGMENT_FINISHED ──► DELETE_SEGMENT_STARTED ──► DELETE_SEGMENT_FINISHED ──► tombstone
      │    ▲ │                                           ▲    ▲
      └────┘ └───────────────────────────────────────────┘    └── a key may open here (deleted under a newer epoch)
   again with a new uuid

Each key has its own state: a FINISHED of an older epoch is legal after a STARTED of a newer one.
A repeated state with the same uuid is a retry of the same write and changes nothing.
Source: KAFKA-20033, "Lifecycle events"; KIP-405, RemoteLogSegmentState and RemotePartitionDeleteState.
"""

from __future__ import annotations

import base64
import binascii
import enum
import re
import uuid
from typing import NamedTuple

from headrace.storage.errors import IllegalTransitionError, InvalidError

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_SHAPES = "topicId:partition:endOffset:epoch or topicId:partition"


class RemotePartitionKey(NamedTuple):
    """The key of a partition's delete marker, and the prefix of its segments' keys."""

    topic_id: uuid.UUID
    partition: int

    def __str__(self) -> str:
        return f"{base64url(self.topic_id)}:{self.partition}"


class RemoteSegmentKey(NamedTuple):
    """The key of one segment as one holder of an epoch copied it. `end_offset`: its last record's, inclusive."""

    topic_id: uuid.UUID
    partition: int
    end_offset: int
    epoch: int

    @property
    def of_partition(self) -> RemotePartitionKey:
        """The partition that the segment belongs to."""
        return RemotePartitionKey(self.topic_id, self.partition)

    def __str__(self) -> str:
        return f"{self.of_partition}:{self.end_offset}:{self.epoch}"


LifecycleKey = RemoteSegmentKey | RemotePartitionKey


def base64url(topic_id: uuid.UUID) -> str:
    """An id as Kafka prints it: 22 characters, without padding."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def parse_key(text: str | bytes) -> LifecycleKey:
    """The key that prints as `text`. InvalidError names the part that does not parse."""
    try:
        parts = (text.decode("ascii") if isinstance(text, bytes) else text).split(":")
    except UnicodeDecodeError as error:
        raise InvalidError(f"lifecycle key is not ASCII: key={text!r}") from error
    if len(parts) not in (2, 4):
        raise InvalidError(f"lifecycle key has {len(parts)} parts, wanted {_SHAPES}: key={text!r}")
    topic_id = _topic_id(parts[0], text)
    partition = _number(parts[1], INT32_MAX, "partition", text)
    if len(parts) == 2:
        return RemotePartitionKey(topic_id, partition)
    end_offset = _number(parts[2], INT64_MAX, "end offset", text)
    return RemoteSegmentKey(topic_id, partition, end_offset, _number(parts[3], INT32_MAX, "epoch", text))


def _topic_id(part: str, text: str | bytes) -> uuid.UUID:
    try:
        topic_id = uuid.UUID(bytes=base64.b64decode(part + "==", altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as error:
        raise InvalidError(f"lifecycle key has no topic id of 16 bytes in base64url: key={text!r}") from error
    if base64url(topic_id) != part:
        raise InvalidError(f"lifecycle key has a topic id with surplus bits or padding: key={text!r}")
    return topic_id


def _number(part: str, largest: int, name: str, text: str | bytes) -> int:
    if not _NUMBER.fullmatch(part) or int(part) > largest:
        raise InvalidError(f"lifecycle key has no {name} of 0 to {largest}: key={text!r}")
    return int(part)


class RemoteLogSegmentState(enum.IntEnum):
    """RemoteLogSegmentState, with Kafka's ids. Numbers are stored: never reuse one."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class RemotePartitionDeleteState(enum.IntEnum):
    """RemotePartitionDeleteState, with Kafka's ids. MARKED is Kafka's controller's; Headrace does not write it."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


class Latest(NamedTuple):
    """The state of a segment's key, and the uuid that it is about."""

    state: RemoteLogSegmentState
    segment_id: uuid.UUID


_FOLLOWS = {
    RemoteLogSegmentState.COPY_SEGMENT_STARTED: {
        RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    },
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED: {RemoteLogSegmentState.DELETE_SEGMENT_STARTED},
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED: {RemoteLogSegmentState.DELETE_SEGMENT_FINISHED},
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED: set[RemoteLogSegmentState](),
}
_OPENS = {RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_STARTED}
_PARTITION_FOLLOWS = {
    None: {RemotePartitionDeleteState.DELETE_PARTITION_MARKED, RemotePartitionDeleteState.DELETE_PARTITION_STARTED},
    RemotePartitionDeleteState.DELETE_PARTITION_MARKED: {RemotePartitionDeleteState.DELETE_PARTITION_STARTED},
    RemotePartitionDeleteState.DELETE_PARTITION_STARTED: {RemotePartitionDeleteState.DELETE_PARTITION_FINISHED},
    RemotePartitionDeleteState.DELETE_PARTITION_FINISHED: set[RemotePartitionDeleteState](),
}


def segment_transition(key: LifecycleKey, latest: Latest | None, new: Latest) -> bool:
    """Return whether `new` changes the key's state; False for a repeated write. IllegalTransitionError if it may not
    follow.

    `latest`: None if the key has no record, or a tombstone as its last one.
    """
    if latest == new:
        return False
    if latest is None:
        if new.state in _OPENS:
            return True
        raise _illegal(key, "no record", new)
    if latest.segment_id != new.segment_id:
        if latest.state is new.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            return True  # the attempt before failed; its uuid's object is an orphan
        raise _illegal(key, f"{latest.state.name} of uuid={latest.segment_id}", new)
    if new.state not in _FOLLOWS[latest.state]:
        raise _illegal(key, latest.state.name, new)
    return True


def partition_transition(
    key: LifecycleKey, latest: RemotePartitionDeleteState | None, new: RemotePartitionDeleteState
) -> bool:
    """Do what segment_transition does, for a partition's delete marker."""
    if latest is new:
        return False
    if new not in _PARTITION_FOLLOWS[latest]:
        before = "no record" if latest is None else latest.name
        raise IllegalTransitionError(f"illegal lifecycle transition: key={key} from={before} to={new.name}")
    return True


def _illegal(key: LifecycleKey, before: str, new: Latest) -> IllegalTransitionError:
    return IllegalTransitionError(
        f"illegal lifecycle transition: key={key} from={before} to={new.state.name} uuid={new.segment_id}"
    )
