"""What a process has once, and its composing services make everything else of.

Place: made by cli/process/open_process.py, and by tests; below agent and compactor, as both take it.
Invariant: it never changes, and only services that compose others take it (a contract in pyproject.toml). A part that
needs two of its fields takes those two; pure parts have explicit parameters.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from headrace.config.settings import Settings
from headrace.metastore.api.metastore import Metastore
from headrace.storage.clock import Clock
from headrace.storage.objects.store import ObjectStore
from headrace.storage.supervision import Supervisor


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessContext:
    """One process: its settings, its connections to bucket and metastore, and what its work is timed and watched by."""

    settings: Settings
    store: ObjectStore
    metastore: Metastore
    clock: Clock
    rng: random.Random
    registry: CollectorRegistry
    supervisor: Supervisor
    """Of all background work of the process."""

    async def close(self) -> None:
        """Close the connections: only for a process that was not composed, as a composed one's shell does it."""
        await self.metastore.close()
        await self.store.close()
