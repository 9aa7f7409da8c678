"""Workloads, benchmarks and the demo; nothing here is part of the product."""
