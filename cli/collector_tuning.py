"""The garbage collector, told what an agent is: much that stays, and garbage that reference counts free.

Place: once, when the process has loaded all it needs.
Invariant: cycles are still collected, only seldom: nothing on the paths makes them.
"""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 50_000
"""Allocations before the youngest generation is looked at; Python's 700 means several looks per flush."""


def tune_collector() -> None:
    """Never look again at what is loaded now, and seldom at the rest."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)
