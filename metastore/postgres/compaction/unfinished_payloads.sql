-- What the unfinished jobs of a kind are about. Locks: none. Idempotent: reads only. Cost: one probe, and one row each.
SELECT payload FROM jobs WHERE kind = %(kind)s AND state IN (job_waiting(), job_leased())
