"""Background work on segment files: planning (pure), jobs, workers, fenced commits."""
