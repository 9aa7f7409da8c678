"""Reads what a topic's log has for its table: where it begins and ends, what comes next, and the rows of that."""
