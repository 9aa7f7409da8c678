"""What other agents reach: asked when this agent's own calls to metastore or bucket fail (cli/process/readiness.py)."""
