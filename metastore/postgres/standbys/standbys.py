"""Probes whether commits end, and says what they wait for.

Place: of Metastore.probe_commit; under the readiness of each process and `headrace doctor`.
Invariant: a probe that waits is canceled, so sessions that wait do not add up: what it commits is only a message, which
may be on no standby. What commits wait for is read by a connection of readers, as the others may all hang.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from headrace.metastore.api.metastore import END_THE_WAIT, PROBE_SECONDS, StandbyState
from headrace.metastore.postgres.statement import Pool, Statement
from headrace.storage.errors import HeadraceError, UnavailableError

AWAIT_STANDBYS = Statement("await_standbys", writes=True)
_PROBE_COMMIT = Statement("probe_commit", writes=True, in_any_life=True)
_STANDBY_STATE = Statement("standby_state", writes=False)


async def probe_commit(pool: Pool, readers: Pool) -> None:
    """See Metastore.probe_commit; the pool remembers what commits wait for."""
    try:
        state = await commit_wait(pool, readers)
    except HeadraceError:
        pool.standby_wait = None  # the error says more
        raise
    pool.standby_wait = None if state is None else f"{state.wait} → {END_THE_WAIT}"


async def commit_wait(pool: Pool, readers: Pool) -> StandbyState | None:
    """Return what commits wait for; None if one has ended. UnavailableError if it did not, for another reason."""
    writing = asyncio.ensure_future(_PROBE_COMMIT.row(pool))
    try:
        done, _ = await asyncio.wait({writing}, timeout=PROBE_SECONDS)
        if done:
            if (await writing)[1]:
                pool.refused(UnavailableError("transactions are read-only (default_transaction_read_only)"))
            return None
        with suppress(UnavailableError):  # what is said below is known already
            state = StandbyState(*await _STANDBY_STATE.row(readers, waited_ms=round(PROBE_SECONDS / 2 * 1000)))
            if state.waiting:
                return state
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    raise UnavailableError(f"a commit has not ended after {PROBE_SECONDS:g} s")
