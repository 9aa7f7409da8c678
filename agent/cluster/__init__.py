"""This agent's membership in the cluster, the metadata image that it follows, and routing."""
