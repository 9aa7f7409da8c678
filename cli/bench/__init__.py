"""`headrace bench`: load on one target, or on several in turns, and what it costs their processes."""
