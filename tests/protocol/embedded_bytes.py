"""The bytes that classic consumers put into JoinGroup, written manually: nothing of the code under test."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence


def subscription_bytes(
    topics: Sequence[str], owned: Mapping[str, Sequence[int]] | None = None, *, version: int = 1
) -> bytes:
    """ConsumerProtocolSubscription version 0-3, without user data."""
    parts = [struct.pack(">hi", version, len(topics)), *(_text(topic) for topic in topics), struct.pack(">i", -1)]
    if version >= 1:
        owned = owned or {}
        parts.append(struct.pack(">i", len(owned)))
        for topic, indexes in owned.items():
            parts += [_text(topic), struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)]
    if version >= 2:
        parts.append(struct.pack(">i", -1))
    if version >= 3:
        parts.append(_text("rack-1"))
    return b"".join(parts)


def assignment_bytes(assigned: Mapping[str, Sequence[int]], *, version: int = 1) -> bytes:
    """ConsumerProtocolAssignment, without user data."""
    parts = [struct.pack(">hi", version, len(assigned))]
    for topic, indexes in assigned.items():
        parts += [_text(topic), struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)]
    return b"".join([*parts, struct.pack(">i", -1)])


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
