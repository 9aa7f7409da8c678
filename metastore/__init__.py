"""The metastore: it decides order, and keeps everything but the records' bytes.

api/ is the boundary that callers use, log/ the cluster metadata log (pure), keys.py the arithmetic of
partition keys, and postgres/ the implementation, which only code that composes a process imports.
"""
