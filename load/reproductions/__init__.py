"""Programs that show one defect each: run on a version with it, and on one without, they print what differs.

Place: by hand, `python -m load.reproductions.<name>`. For an older version, copy this folder into load/ of its checkout
and run the same command there: metastore_world.py finds the modules under their older names.
Invariant: they use only operations that old versions have too. Each starts a separate Postgres on a temporary directory
and removes it.
"""
