"""Damaged extents get sound copies: from what the bucket still has, or without what is lost (decisions/0092)."""
