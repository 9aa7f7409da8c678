"""The life of the metastore: which server may write, and what a new life changes."""

from __future__ import annotations
