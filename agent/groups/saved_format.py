"""Reads what is stored of a group.

Place: under the modules saved.py of each kind of group, which have the fields.
Invariant: an unknown format is refused.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from headrace.storage.errors import CorruptError, InvalidError


class SavedFormat(Protocol):
    """Fields are added with defaults, never renumbered; else `format` rises."""

    @property
    def format(self) -> int: ...


S = TypeVar("S", bound=SavedFormat)


def decode_saved(data: bytes, kind: type[S], what: str, newest: int) -> S:
    """CorruptError, or InvalidError for another format than `newest`. `what`: the kind of group, for these."""
    try:
        state = msgspec.msgpack.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptError(f"saved {what} is damaged: {error}") from error
    if state.format != newest:
        raise InvalidError(f"unknown format of a saved {what}: format={state.format}")
    return state
