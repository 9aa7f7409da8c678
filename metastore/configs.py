"""What was set for all brokers while they run, without the metadata log around it.

Place: asked now and then by processes that hold no image of the cluster: background workers (compactor/pace.py).
Invariant: the rows are the log's own projection, written with its records. If the process dies here nothing is lost.
"""

from __future__ import annotations

from typing import Protocol


class ConfigApi(Protocol):
    """Configs as of now."""

    async def cluster_configs(self) -> dict[str, str]:
        """The cluster-wide broker configs: name -> value. O(configs of that kind)."""
