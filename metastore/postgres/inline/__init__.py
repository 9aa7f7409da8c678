"""Inline files: flush files whose bytes are rows of the metastore until a merge moves them."""
