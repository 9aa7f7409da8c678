"""Which names a group and its members can have.

Place: asked by the handlers of group requests before anything else.
Invariant: a text that passes can be stored in the metastore.
"""

from __future__ import annotations


def storable(text: str) -> bool:
    """Whether the metastore can hold the text: Postgres has no place for NUL."""
    return "\0" not in text


def is_legal_group_id(group_id: str) -> bool:
    """Members' groups have a name; a consumer that assigns itself may commit without one."""
    return bool(group_id) and storable(group_id)
