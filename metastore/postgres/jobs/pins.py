"""Read pins in Postgres: rows of the jobs table, which the janitor looks at anyway.

Place: under headrace.scan; implements metastore.api.pins.ReadPinApi.
Invariant: a pin is granted before the look-ups that it protects begin; its end is the row's lease.
"""

from __future__ import annotations

from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.pins import GrantedPin
from headrace.metastore.postgres.statement import Pool, Statement

_PIN_READS = Statement("pin_reads", writes=True)
_RELEASE_PINS = Statement("release_pins", writes=True)


class PostgresPins:
    """Implements metastore.api.pins.ReadPinApi."""

    pool: Pool

    async def pin_reads(self, holder: str, term_ms: int, default_max_ms: int) -> GrantedPin:
        job_id, epoch, max_term_ms = await _PIN_READS.row(
            self.pool, holder=holder, term_ms=term_ms, default_max_ms=default_max_ms
        )
        return GrantedPin(None if job_id is None else JobToken(job_id, epoch), max_term_ms)

    async def release_pins(self, tokens: list[JobToken]) -> None:
        await _RELEASE_PINS.row(
            self.pool,
            job_ids=[token.job_id for token in tokens],
            epochs=[token.epoch for token in tokens],
        )
