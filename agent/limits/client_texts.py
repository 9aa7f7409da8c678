"""Decides which texts of clients an agent can take.

Place: ids of groups and transactions are asked about by the handlers of requests that name them, before anything
else, and before a group is claimed. Patterns, in RE2's syntax, are under the subscriptions of consumer groups and under
ListTransactions.
Invariant: a text that passes can be stored in the metastore. A new id has at most ID_BYTES_MAX; one that is stored
stays usable. Kafka names no limit, but its record of an offset has the group id as a string of at most 32,767 bytes:
a broker answers UNKNOWN_SERVER_ERROR to an OffsetCommit of a longer one.
Any pattern matches in time linear in the text, and its program is bounded: no pattern can stop the agent
(decisions/0022). Kafka uses the same syntax.
"""

from __future__ import annotations

import re2

PATTERN_CHARACTERS_MAX = 4_096
PROGRAM_BYTES = 256 * 1024
"""Memory that one pattern's program and its automaton may take."""


def compile_pattern(pattern: str) -> re2._Regexp:
    """ValueError if it is not RE2 syntax, or too large."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise ValueError(f"pattern of more than {PATTERN_CHARACTERS_MAX} characters")
    options = re2.Options()
    options.max_mem = PROGRAM_BYTES
    options.never_capture = True  # else each pair of parentheses costs memory that max_mem does not count
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"not RE2 syntax: {error}") from error


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
