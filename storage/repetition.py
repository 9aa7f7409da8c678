"""Decide which of many like events get a log line.

Place: under the log's filter (cli/process/logs.py), refusals of clients, denials, refused connections.
Invariant: of one key at most `lines` events per `seconds` get a line, and memory is bounded: of a key a digest of fixed
size is kept, for texts of any length, and beyond KEYS_MAX keys all are forgotten. Every event that got no line is
counted in the next line of its key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final

SECONDS = 60.0
LIMITED: Final = {"is_limited": True}
"""`extra` of a log line that its writer limits: the log's filter lets it pass."""
KEYS_MAX = 10_000
TEXT_CHARACTERS = 4_096
"""Texts of a key that are equal so far, and of the same length, count as equal."""
_DIGEST_BYTES = 16


@dataclass(slots=True)
class _Window:
    began_at: float
    lines: int = 0
    left_out: int = 0


class Repetitions:
    """Counts of repeated events, for one thread, or under a lock."""

    def __init__(self, *, lines: int = 1, seconds: float = SECONDS) -> None:
        self._lines, self._seconds = lines, seconds
        self._windows: dict[bytes, _Window] = {}

    def left_out(self, key: Hashable, now: float) -> int | None:
        """None: this event gets no line. Else how many of its key got none since the last line. `now`: seconds.

        A key is a value or a tuple of values.
        """
        digest = digest_of(key)
        window = self._windows.get(digest)
        if window is None:
            if len(self._windows) >= KEYS_MAX:
                self._windows.clear()
            window = self._windows[digest] = _Window(now)
        elif now - window.began_at >= self._seconds:
            window.began_at, window.lines = now, 0
        if window.lines >= self._lines:
            window.left_out += 1
            return None
        window.lines += 1
        left_out, window.left_out = window.left_out, 0
        return left_out


def digest_of(key: Hashable) -> bytes:
    """Return a digest of fixed size."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in _parts(key):
        digest.update(part)
    return digest.digest()


def _parts(key: object) -> Iterator[bytes]:
    if isinstance(key, tuple):
        yield b"(%d" % len(key)
        for each in key:
            yield from _parts(each)
        return
    text = key if isinstance(key, str) else repr(key)
    part = text[:TEXT_CHARACTERS].encode("utf-8", "surrogatepass")
    yield b"%s:%d:%d:" % (type(key).__name__.encode(), len(text), len(part))
    yield part
