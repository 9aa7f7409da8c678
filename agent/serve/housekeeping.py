"""Removes old rows from the metastore: done by every agent in turn, in small steps.

Place: one task per agent on its event loop. Each call is chunked, only tries its locks, and does
nothing if another agent has just done it.
Invariant: no answer depends on it; if it stops, tables grow and the slots' old rows stay longer. After an
interruption, the next call continues.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.metastore.api.housekeeping import HousekeepingApi
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 15.0
"""About the number of seconds between two rounds in the whole cluster."""
IDLE_ROUNDS_MAX = 4
"""A step that finds nothing to do leaves out one round, then two, and three at most; one with work leaves out none."""
CHUNK_ROWS = 1_000


class Housekeeper:
    """The clean-up steps. A step that fails does not keep the others from their turn."""

    def __init__(
        self,
        metastore: HousekeepingApi,
        clock: Clock,
        rng: random.Random,
        registry: CollectorRegistry,
        agents: Callable[[], int] = lambda: 1,
        count_rows: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`agents`: how many do this now. `count_rows`: counts what clients made the metastore keep, and shows it."""
        self._agents = agents
        self._clock = clock
        self._rng = rng
        self._steps = {
            "rotate_log_slots": _Step(lambda: _done(metastore.rotate_log_slots()), 1, rounds_max=1),
            "overdue_slots": _Step(lambda: _done(self._show_overdue_slots(metastore)), 1, rounds_max=1),
            "expire_producer_state": _Step(lambda: metastore.expire_producer_state(CHUNK_ROWS), 1),
            "merge_producer_id_blocks": _Step(lambda: metastore.merge_producer_id_blocks(CHUNK_ROWS), 1),
            "purge_deleted_partitions": _Step(lambda: metastore.purge_deleted_partitions(CHUNK_ROWS), 1),
            "prune_removed_extents": _Step(lambda: metastore.prune_removed_extents(CHUNK_ROWS), CHUNK_ROWS),
            "expire_group_offsets": _Step(lambda: metastore.expire_group_offsets(CHUNK_ROWS), CHUNK_ROWS),
            "prune_jobs": _Step(lambda: metastore.prune_jobs(CHUNK_ROWS), CHUNK_ROWS),
            "finish_bulk_writes": _Step(lambda: metastore.finish_bulk_writes(), 1),
            "oldest_bulk_write": _Step(lambda: _done(self._show_bulk_writes(metastore)), 1, rounds_max=1),
            "prune_bulk_writes": _Step(lambda: metastore.prune_bulk_writes(CHUNK_ROWS), CHUNK_ROWS),
            "oldest_audit_block": _Step(lambda: _done(self._show_audit_blocks(metastore)), 1, rounds_max=1),
            "held_snapshot": _Step(lambda: _done(self._show_held_snapshot(metastore)), 1, rounds_max=1),
        }
        if count_rows is not None:
            self._steps["client_rows"] = _Step(lambda: _done(count_rows()), 1, rounds_max=1)
        self._held_snapshot = Gauge(
            "headrace_metastore_held_snapshot_transactions",
            "Transactions of the metastore since the oldest snapshot that a session, a standby or a replication slot"
            " holds; until it ends, tables grow",
            registry=registry,
        )
        self._bulk_write = Gauge(
            "headrace_bulk_write_waits_seconds",
            "Seconds since the last progress of the oldest incomplete bulk write; 0 if there is none. Topics do not"
            " grow before it is complete",
            registry=registry,
        )
        self._audit_block = Gauge(
            "headrace_audit_trail_waits_seconds",
            "Age of the oldest full block of the audit trail that is still in Postgres; 0 if there is none. More than"
            " a minute: archiving falls behind",
            registry=registry,
        )
        self._overdue_slots = Gauge(
            "headrace_metastore_slots_overdue",
            "Turns for which the next slot of the feed (30 s each) or of the answers (15 min each) is overdue; more"
            " than 1: it cannot be emptied",
            ["log"],
            registry=registry,
        )
        self._failures = Counter(
            "headrace_housekeeping_failures_total",
            "Failed clean-up steps; they are repeated",
            ["step"],
            registry=registry,
        )

    async def run(self) -> None:
        """Runs until cancelled; random pauses spread the agents of a cluster."""
        while True:
            await self._clock.sleep(INTERVAL_SECONDS * max(1, self._agents()) * (0.5 + self._rng.random()))
            unfinished = [name for name, step in self._steps.items() if step.is_due()]
            while unfinished:
                unfinished = [name for name in unfinished if await self._has_more(name)]
                await self._clock.sleep(0)

    async def _show_held_snapshot(self, metastore: HousekeepingApi) -> None:
        self._held_snapshot.set(await metastore.held_snapshot())

    async def _show_bulk_writes(self, metastore: HousekeepingApi) -> None:
        self._bulk_write.set(await metastore.oldest_bulk_write())

    async def _show_audit_blocks(self, metastore: HousekeepingApi) -> None:
        self._audit_block.set(await metastore.oldest_audit_block())

    async def _show_overdue_slots(self, metastore: HousekeepingApi) -> None:
        for log, turns in (await metastore.overdue_slots()).items():
            self._overdue_slots.labels(log).set(turns)

    async def _has_more(self, name: str) -> bool:
        """One chunk of one step; whether it has more to do."""
        try:
            return await self._steps[name].has_more()
        except HeadraceError as error:
            logger.warning("housekeeping failed: step=%s error=%s", name, error)
        except Exception:  # a bug, or a client library's: it must not end the other steps
            logger.exception("housekeeping failed unexpectedly: step=%s", name)
        self._failures.labels(name).inc()
        return False


class _Step:
    """One clean-up step, and the rounds in which it has its turn."""

    def __init__(
        self, clean_up: Callable[[], Awaitable[int]], full_chunk: int, rounds_max: int = IDLE_ROUNDS_MAX
    ) -> None:
        """`clean_up` returns how much it did; from `full_chunk` on there may be more to do."""
        self._clean_up, self._full_chunk, self._rounds_max = clean_up, full_chunk, rounds_max
        self._idle_turns = 0
        """In a row, the current one included until it finds something or fails."""
        self._rounds_left_out = 0

    def is_due(self) -> bool:
        """Return whether the step is due; asked once a round; its turn begins if it is."""
        self._rounds_left_out += 1
        if self._rounds_left_out <= min(self._idle_turns, self._rounds_max - 1):
            return False
        self._rounds_left_out = 0
        self._idle_turns += 1
        return True

    async def has_more(self) -> bool:
        """One chunk of its turn."""
        idle_turns, self._idle_turns = self._idle_turns, 0
        done = await self._clean_up()
        if not done:
            self._idle_turns = idle_turns
        return done >= self._full_chunk


async def _done(step: Awaitable[object]) -> int:
    await step
    return 0
