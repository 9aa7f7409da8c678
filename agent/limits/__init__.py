"""What clients may make an agent and the metastore keep, and what the operator hears of it; below all other folders."""
