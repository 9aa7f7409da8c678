"""The slot that an inline file's id names, as metastore/postgres/inline/inline_ids.sql reads it."""

from __future__ import annotations

import uuid


def inline_slot(file_id: uuid.UUID) -> int:
    """Return the slot with an inline file's bytes."""
    return file_id.int >> 64 & 0xFF
