"""The keys of lifecycle records: a segment's, and a partition's delete marker's.

Place: written with each lifecycle record, and read back from a topic or an argument.
Invariant: a key has exactly one text, and `parse_key` accepts no other: two texts that name one key would survive
compaction side by side.
Source: KAFKA-20033, "Message Key and Value".
    segment           base64url(topicId):partition:endOffset:brokerLeaderEpoch
    delete marker     base64url(topicId):partition
"""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from typing import NamedTuple

from headrace.storage.errors import InvalidError

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
