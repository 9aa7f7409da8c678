"""What a classic consumer says it subscribes to: the head of its embedded protocol's bytes. Pure.

Place: tells which offsets of a group are in use; nothing in a rebalance depends on it.
Invariant: bytes that are not Kafka's consumer protocol mean "not known", never "none".
Source: ConsumerProtocolSubscription, versions 0-3: int16 version, then an array of topics' names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from headrace.agent.groups.group_values import CONSUMER


def subscribed_topics(protocol_type: str | None, metadata: Iterable[bytes | None]) -> frozenset[str] | None:
    """The topics of all members together; None when it cannot be known."""
    if protocol_type != CONSUMER:
        return None
    try:
        return frozenset(topic for each in metadata for topic in _topics(each or b""))
    except (struct.error, UnicodeDecodeError, ValueError):
        return None


def _topics(metadata: bytes) -> Iterable[str]:
    version, count = struct.unpack_from(">hi", metadata)
    if version < 0 or not 0 <= count <= len(metadata):
        raise ValueError(f"not a consumer's subscription: version={version} topics={count}")
    at = 6
    for _ in range(count):
        (length,) = struct.unpack_from(">h", metadata, at)
        at += 2
        if length < 0 or at + length > len(metadata):
            raise ValueError(f"topic's name ends after the subscription: length={length}")
        topic = metadata[at : at + length].decode()
        if "\0" in topic:
            raise ValueError("no topic has such a name")
        yield topic
        at += length
