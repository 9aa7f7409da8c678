"""The Produce requests that the listener has received partly or completely.

Place: written by every connection, read by the flusher of the write path, which closes a file early
only while no more bytes arrive.
Invariant: `half_received` is the number of Produce frames that hold memory and are incomplete.
"""

from __future__ import annotations

from collections.abc import Callable


class ProduceBytes:
    """Count of Produce bytes, for all connections of one listener. For one event loop; not thread-safe."""

    def __init__(self, waits_for_memory: Callable[[], bool] = lambda: False) -> None:
        """`waits_for_memory`: whether a request waits for the memory budget."""
        self.waits_for_memory = waits_for_memory
        self.last_at = float("-inf")
        """When the last byte of one arrived, on Clock.monotonic()."""
        self.reads = 0
        """How often bytes arrived."""
        self.half_received = 0
        """Requests with a started, incomplete frame."""

    def saw(self, now: float) -> None:
        """Bytes of a Produce request arrived."""
        self.last_at = now
        self.reads += 1
