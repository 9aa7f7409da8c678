-- The epochs of a kind's leases that are not over: an expired one holds until a worker claims its job (assert_job.sql).
-- Locks: none. Idempotent: reads only. Cost: the unfinished jobs of the kind, by an index.
SELECT epoch FROM jobs WHERE kind = %(kind)s::text AND state = job_leased()
