"""Background work on segment files: plan (pure), job, worker, fenced commit."""
