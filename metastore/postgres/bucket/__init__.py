"""The bucket that the cluster's row names."""

from __future__ import annotations
