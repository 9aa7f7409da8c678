"""Decide which transactional ids there can be.

Place: asked before a transactional id is stored.
Invariant: what passes can be a key in the metastore.
"""

from __future__ import annotations

TRANSACTIONAL_ID_BYTES_MAX = 2_000
"""Most bytes of a transactional id in UTF-8. Kafka takes 32,767; a key of an index in Postgres is shorter."""


def is_legal_transactional_id(transactional_id: str) -> bool:
    """Not empty, not too long, and without NUL, which Postgres does not store."""
    return 0 < len(transactional_id.encode()) <= TRANSACTIONAL_ID_BYTES_MAX and "\0" not in transactional_id
