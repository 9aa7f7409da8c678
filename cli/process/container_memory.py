"""The memory limit of the container, from Linux' control groups.

Place: read once, when a process starts (serve.py).
Invariant: it only reads. What cannot be read counts as no limit.
"""

from __future__ import annotations

from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
FILES = ("memory.max", "memory/memory.limit_in_bytes")
"""Files of version 2 and of version 1, as they appear inside a container."""
NO_LIMIT_BYTES = 1 << 60
"""Version 1 writes a number near 2^63 where there is no limit."""


def container_limit_bytes(cgroups: Path = CGROUPS) -> int | None:
    """None: there is none, or it is not known."""
    for file in FILES:
        try:
            text = (cgroups / file).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdecimal() and int(text) < NO_LIMIT_BYTES else None
    return None
