"""The page /metrics, made once for all requests that wait for it.

Place: under http_app.py.
Invariant: a page is made after its request arrived, never before. Between two pages the loop serves other connections:
many requests for this page, which takes some milliseconds, do not keep a health probe waiting.
"""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, generate_latest


class MetricsPage:
    """The page of metrics, for one event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._turn = asyncio.Lock()
        self._begun = 0
        """How many pages were begun."""
        self._page = b""

    async def read(self) -> bytes:
        """The page."""
        begun = self._begun
        async with self._turn:
            if self._begun == begun:
                await asyncio.sleep(0)  # requests that have arrived meanwhile wait for this page
                self._begun += 1
                self._page = generate_latest(self._registry)
            return self._page
