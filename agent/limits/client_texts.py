"""Decides which texts of clients an agent can take.

Place: ids of groups and transactions are asked about by the handlers of requests that name them, before anything
else, and before a group is claimed. Patterns: config/patterns.py.
Invariant: a text that passes can be stored in the metastore. A new id has at most ID_BYTES_MAX; one that is stored
stays usable. Kafka names no limit, but its record of an offset has the group id as a string of at most 32,767 bytes:
a broker answers UNKNOWN_SERVER_ERROR to an OffsetCommit of a longer one.
"""

from __future__ import annotations

import re

TOPIC_NAME_LENGTH_MAX = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def is_topic_name(text: str) -> bool:
    """Return whether a topic can have this name, by Kafka's rules."""
    return text not in (".", "..") and len(text) <= TOPIC_NAME_LENGTH_MAX and _LEGAL.fullmatch(text) is not None


ID_BYTES_MAX = 2_000
"""UTF-8: a key of an index in Postgres has no place for more than 2,704 bytes."""
_STORED_CHARACTERS_MAX = 1_000_000
"""No longer text was ever stored: compressed, it is too large for the index."""


def storable(text: str) -> bool:
    """Return whether the metastore can hold the text: Postgres has no place for NUL."""
    return "\0" not in text


def is_long(group_id: str) -> bool:
    """Return whether a group can have this id only if it is stored already."""
    return len(group_id) > ID_BYTES_MAX // 4 and len(group_id.encode()) > ID_BYTES_MAX


def may_be_stored(group_id: str) -> bool:
    """Return whether a group of this id can have been stored before new ids were limited."""
    return len(group_id) <= _STORED_CHARACTERS_MAX
