"""`headrace` in a process that also writes down what its allocators hold.

Place: a child process of load/benchmarks/memory_hours.py: `python -m load.workloads.memory_hours.probe FILE SECONDS
agent FLAGS...`.
Invariant: each line of the file is one JSON object of sizes in bytes and counts. Only a thread is added to the process,
and nothing that the agent uses is changed, unless MEMORY_TRACE_FRAMES turns tracemalloc on.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

from headrace.cli.main import main

TRACE_FRAMES = "MEMORY_TRACE_FRAMES"
"""Environment: frames of each allocation that tracemalloc keeps; unset or 0: tracemalloc is off."""
SHOWN_LINES = 25


class MallInfo2(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    )  # fmt: skip


def allocator() -> dict[str, int]:
    """Return what glibc holds: `arena` (heap), `uordblks` (used of it), `fordblks` (free in it), `keepcost` (free at
    its end), `hblkhd` (mapped by themselves).
    """
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = MallInfo2
    info = mallinfo2()
    return {name: getattr(info, name) for name in ("arena", "uordblks", "fordblks", "keepcost", "hblkhd", "ordblks")}


def write_samples(path: Path, seconds: float) -> None:
    """Append a line every `seconds`, for as long as the process runs. The totals of Python's small-object allocator
    go to stderr, because CPython returns them nowhere else.
    """
    before: tracemalloc.Snapshot | None = None
    number = 0
    while True:
        sample: dict[str, Any] = {"time": time.time(), "python_blocks": sys.getallocatedblocks(), **allocator()}
        sample["garbage"] = gc.get_count()[0]
        if tracemalloc.is_tracing():
            sample["traced"] = tracemalloc.get_traced_memory()[0]
            if number % 30 == 0:
                before = _show_growth(before)
        with path.open("a") as file:
            file.write(json.dumps(sample) + "\n")
        sys._debugmallocstats()
        number += 1
        time.sleep(seconds)


def _show_growth(before: tracemalloc.Snapshot | None) -> tracemalloc.Snapshot:
    now = tracemalloc.take_snapshot()
    for line in [] if before is None else now.compare_to(before, "lineno")[:SHOWN_LINES]:
        print("traced:", line, file=sys.stderr)
    return before or now


if __name__ == "__main__":
    if frames := int(os.environ.get(TRACE_FRAMES, 0)):
        tracemalloc.start(frames)
    threading.Thread(target=write_samples, args=(Path(sys.argv[1]), float(sys.argv[2])), daemon=True).start()
    sys.exit(main(sys.argv[3:]))
