"""How far a torture run is: a line at each step, and one every EVERY_SECONDS.

Invariant: it only looks. A run that hangs has said where.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from tests.torture.cluster import TortureCluster
from tests.torture.writers import Report

EVERY_SECONDS = 10


class Progress:
    """`say` takes each line; times count from here on."""

    def __init__(self, cluster: TortureCluster, reports: Sequence[Report], say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._reports = reports
        self._say = say
        self._began = time.monotonic()
        self._step = "everything is up"

    def step(self, name: str) -> None:
        """The next one begins."""
        self._step = name
        self._tell()

    async def tell_for_ever(self) -> None:
        """Print progress until cancelled."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            self._tell()

    def _tell(self) -> None:
        told = sum(len(report.acknowledged) for report in self._reports)
        faults = self._cluster.injected.total()
        passed_s = time.monotonic() - self._began
        self._say(f"{passed_s:5.0f} s  {self._step}: faults {faults}, acknowledged {told:,}")
