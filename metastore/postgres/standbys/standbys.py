"""Probes whether commits end, and says what they wait for.

Place: implements StandbyApi; under the readiness of each process and `headrace doctor`.
Invariant: while commits wait for a standby, a probe finds out by a read, and writes nothing: sessions that wait do not
add up. The one that it canceled had only a message. A read does not need the connections that hang: it is a reader.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from headrace.metastore.api.standbys import END_THE_WAIT, PROBE_SECONDS, StandbyState
from headrace.metastore.postgres.statement import Pool, Statement
from headrace.storage.errors import HeadraceError, UnavailableError

AWAIT_STANDBYS = Statement("await_standbys", writes=True)
_PROBE_COMMIT = Statement("probe_commit", writes=True, in_any_life=True)
_STANDBY_STATE = Statement("standby_state", writes=False)


class PostgresStandbys:
    """Implements StandbyApi."""

    pool: Pool
    readers: Pool

    async def probe_commit(self) -> None:
        state = await commit_wait(self.pool, self.readers)
        self.pool.standby_wait = None if state is None else f"{state.wait} → {END_THE_WAIT}"

    def commits(self) -> int:
        return self.pool.commits


async def commit_wait(pool: Pool, readers: Pool) -> StandbyState | None:
    """Return what commits wait for; None if one has ended. UnavailableError if it did not, for another reason."""
    state = await standby_state(readers, PROBE_SECONDS)
    if state.waiting:
        return state
    writing = asyncio.ensure_future(_PROBE_COMMIT.row(pool))
    try:
        done, _ = await asyncio.wait({writing}, timeout=PROBE_SECONDS)
        if done:
            if (await writing)[1]:
                pool.refused(UnavailableError("transactions are read-only (default_transaction_read_only)"))
            return None
        state = await standby_state(readers, PROBE_SECONDS / 2)
    finally:
        writing.cancel()
        with suppress(asyncio.CancelledError, HeadraceError):
            await writing
    if state.waiting:
        return state
    raise UnavailableError(f"a commit has not ended after {PROBE_SECONDS:g} s")


async def standby_state(pool: Pool, waited_s: float) -> StandbyState:
    """Count sessions that have waited for so long. Errors as every statement's."""
    names, connected, *waits = await _STANDBY_STATE.row(pool, waited_ms=round(waited_s * 1000))
    return StandbyState(names, tuple(connected), *waits)
