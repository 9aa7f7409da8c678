"""Inline files: flush files with bytes that are rows of the metastore until a merge moves them."""
