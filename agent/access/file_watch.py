"""Whether files changed: certificates, keys and tokens, which are renewed while a process runs.

Place: tls.py, and the HTTP listener's tokens.
Invariant: the files are looked at when a connection or request comes, at most once a second.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from headrace.storage.clock import Clock

LOOK_SECONDS = 1.0
"""How often the files may be looked at."""
_Seen = tuple[tuple[int, int, int], ...]


class FileWatch:
    """File watch for one thread."""

    def __init__(self, paths: Sequence[str], clock: Clock) -> None:
        self._paths, self._clock = paths, clock
        self._seen = self._look()
        self._looked_at = clock.monotonic()

    def changed(self) -> bool:
        """Return whether a file has changed since the last look; False within LOOK_SECONDS of it."""
        now = self._clock.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return False
        self._looked_at = now
        seen, self._seen = self._seen, self._look()
        return seen != self._seen

    def _look(self) -> _Seen:
        return tuple(map(_identity, self._paths))


def _identity(path: str) -> tuple[int, int, int]:
    """Changes with the file, also when a symbolic link above it changes, as Kubernetes replaces secrets."""
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return found.st_ino, found.st_size, found.st_mtime_ns
