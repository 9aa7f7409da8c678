"""The commands that an operator runs at damage, as doctor, audit and the log print them.

Place: under doctor, audit and the command itself (command.py).
Invariant: each line runs as it is, but for the addresses of metastore and bucket.
"""

from __future__ import annotations

import shlex


def ways_past(topic: str, partition_index: int, offset: int) -> str:
    """Return what repairs damage, or goes past it."""
    place = f"{shlex.quote(topic)} --partition {partition_index} --offset {offset}"
    return f"headrace damage repair {place}; if that finds nothing: headrace damage skip {place}"
