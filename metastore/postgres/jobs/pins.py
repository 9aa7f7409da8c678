"""Read pins in Postgres: rows of the jobs table, which the janitor looks at anyway.

Place: under headrace.scan; part of JobApi.
Invariant: a pin is granted before the look-ups that it protects begin; its end is the row's lease.
"""

from __future__ import annotations

from headrace.metastore.api.jobs import GrantedPin, JobApi, JobToken
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement

_PIN_READS = Statement("pin_reads", writes=True)


class PostgresPins(PostgresNoun):
    """Implements what JobApi says of read pins."""

    release_pins = calls(JobApi.release_pins, writes=True, job_ids="tokens.job_id", epochs="tokens.epoch")

    async def pin_reads(self, holder: str, term_ms: int, default_max_ms: int) -> GrantedPin:
        job_id, epoch, max_term_ms = await _PIN_READS.row(
            self.pool, holder=holder, term_ms=term_ms, default_max_ms=default_max_ms
        )
        return GrantedPin(None if job_id is None else JobToken(job_id, epoch), max_term_ms)
