"""Tables with one row per key: which record of a key is its row, and which data files that changes."""
