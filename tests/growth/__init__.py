"""A topic that grows and shrinks under load, while a checker watches the order of each key.

Place: `make demo-growth`, and tests/client/test_growth.py with fewer records.
    ordered_run.py  producers and a group of headrace.client, and every event in its order
    checks.py       what must hold of the events (pure)
    __main__.py     the demonstration and its table
"""
