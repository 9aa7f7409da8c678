"""Tune Python's garbage collector for processes with many permanent objects and few reference cycles.

Place: called once, after a process has loaded its code: agents, workers, Spark's Python workers. Without it, a merge
to level 2 spends most of its time on collector passes that find no garbage.
Invariant: cycles are still collected, but rarely: the hot paths create none.
"""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 200_000
"""Number of new objects before the collector looks at the youngest generation.

More than the requests in flight of a busy agent allocate (about 40 objects each), so that there is no collector pass
under load (docs/understand/PERFORMANCE.md). Python's default of 700 means several useless passes per flush.
"""


def tune_collector() -> None:
    """Exclude all current objects from collection, and collect the rest rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)
