"""The valid form of an object key, the same for every store.

Place: the first step of every operation of every store.
Invariant: a valid key means the same object in S3, in a directory and in memory: no store
normalises it, and it cannot lead a directory store out of its root.
"""

from __future__ import annotations

from headrace.storage.errors import InvalidError

KEY_BYTES_MAX = 1024
"""S3's limit, including the store's prefix."""


def check_key(key: str) -> str:
    """`key` itself; InvalidError if it is absolute, too long, unprintable, or has an empty, `.` or `..` part."""
    if not key.isprintable():
        raise InvalidError(f"bad object key: key={key!r} reason=unprintable character")
    if len(key.encode()) > KEY_BYTES_MAX:
        raise InvalidError(f"bad object key: key={key[:40]!r}… reason=longer than {KEY_BYTES_MAX} bytes")
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise InvalidError(f"bad object key: key={key!r} reason=empty or relative part")
    return key
