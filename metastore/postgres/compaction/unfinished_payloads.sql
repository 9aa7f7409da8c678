-- What the unfinished jobs of some kinds are about.
-- Locks: none. Idempotent: reads only. Cost: one probe per kind, and one row per job.
SELECT kind, payload FROM jobs WHERE kind = ANY (%(kinds)s::text[]) AND state IN (job_waiting(), job_leased())
