"""The garbage collector, told what our processes are: much that stays, and garbage that reference counts free.

Place: once, when a process has loaded all it needs: agents, workers, Spark's Python workers. A merge to level 2
without it spends most of its time on looks at records that are all alive.
Invariant: cycles are still collected, only seldom: nothing on the paths makes them.
"""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 200_000
"""New objects, beyond those that are gone again, before the youngest generation is looked at.

More than a busy agent's requests in flight have, some 40 each, and nothing else stays: so there is no look under load
(docs/PERFORMANCE.md). Python's 700 means several looks per flush, at objects that are all alive.
"""


def tune_collector() -> None:
    """Never look again at what is loaded now, and seldom at the rest."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)
