"""A group as it is stored: the last completed generation, so that the next coordinator carries on.

Place: written by each completed rebalance, read when an agent becomes the group's coordinator.
Invariant: it holds complete generations only, every member with its assignment. Fields are added
with defaults, never renumbered; an unknown format is refused.
If the process dies before it is written, the generation before it stands, and members join again.
"""

from __future__ import annotations

import msgspec

from storage.errors import CorruptError, InvalidError

FORMAT = 1


class SavedMember(msgspec.Struct, frozen=True):
    """Timeouts in seconds; `protocols` in the member's order of preference."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocols: list[tuple[str, bytes]]
    assignment: bytes


class SavedGroup(msgspec.Struct, frozen=True):
    """`members` in the order they joined; none for an empty group."""

    generation: int
    protocol_type: str | None
    protocol_name: str | None
    leader_id: str | None
    members: list[SavedMember]
    format: int = FORMAT


def encode(state: SavedGroup) -> bytes:
    """MessagePack."""
    return msgspec.msgpack.encode(state)


def decode(data: bytes) -> SavedGroup | None:
    """None for a group that was never saved (b""). CorruptError, or InvalidError for a newer format."""
    if not data:
        return None
    try:
        state = msgspec.msgpack.decode(data, type=SavedGroup)
    except msgspec.DecodeError as error:
        raise CorruptError(f"saved group state is damaged: {error}") from error
    if state.format != FORMAT:
        raise InvalidError(f"unknown format of a saved group: format={state.format}")
    return state
