"""The states of segments and partitions, and which change may follow which.

Place: asked before a lifecycle record is written and when a foreign one is read.
Invariant: an illegal change raises IllegalTransitionError, which names key, uuid and both states; it changes nothing.

    COPY_SEGMENT_STARTED ──► COPY_SEGMENT_FINISHED ──► DELETE_SEGMENT_STARTED ──► DELETE_SEGMENT_FINISHED ──► tombstone
        │    ▲ │                                           ▲    ▲
        └────┘ └───────────────────────────────────────────┘    └── a key may open here (a deletion under a newer epoch)
     again with a new uuid

Each key has its own state: a FINISHED of an older epoch is legal after a STARTED of a newer one.
A repeated state with the same uuid is a retry of the same write and changes nothing.
Source: KAFKA-20033, "Lifecycle events"; KIP-405, RemoteLogSegmentState and RemotePartitionDeleteState.
"""

from __future__ import annotations

import enum
import uuid
from typing import NamedTuple

from headrace.metastore.api.segment_keys import LifecycleKey
from headrace.storage.errors import IllegalTransitionError


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
