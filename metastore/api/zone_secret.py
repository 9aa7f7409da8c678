"""The secret with which agents prove to each other that they belong to the same cluster; two of them in a rotation.

Place: read by each agent when it starts; replaced by `headrace storage rotate-zone-secret`.
Invariant: an agent signs with one secret, and accepts every one that another agent may sign with. It answers with the
secret of the question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self, TypeVar

from headrace.storage.errors import InvalidError

T = TypeVar("T")


class ZoneSecret(bytes):
    """What an agent signs with; `other` is accepted too, if there is one."""

    other: bytes | None

    def __new__(cls, own: bytes, other: bytes | None = None) -> Self:
        made = super().__new__(cls, own)
        made.other = other
        return made


class Rotation(NamedTuple):
    """After `step` (added, switched or done); it was not taken while agents in `waits_for` may not know the one
    before it."""

    step: str
    waits_for: tuple[int, ...]


def opened_with(secret: bytes, read: Callable[[bytes], T]) -> tuple[T, bytes]:
    """(what `read` returns, the accepted secret with which it did). InvalidError if none fits."""
    try:
        return read(secret), secret
    except InvalidError:
        other = secret.other if isinstance(secret, ZoneSecret) else None
        if other is None:
            raise
        return read(other), other
