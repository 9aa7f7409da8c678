"""This agent's place in the cluster: membership, the metadata image it follows, and routing from it."""
