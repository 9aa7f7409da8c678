"""Background work: the kinds of jobs, and the loop that runs them from the queue (metastore/api/jobs.py)."""
