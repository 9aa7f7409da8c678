"""Decide which clients could still add to the open file.

Place: the flusher reports every appended request, and asks; the request reports its own answer.
A connection is free while it has no unanswered request: it may send at any time. A connection's depth is the
number of requests that it keeps in flight, which is the most unanswered ones at once, seen lately. It refills
from an answer until it is at its depth again: it sends the next requests as soon as it can.
Invariant: a connection counts as free for `window_s` after its last answer, as refilling for `refill_s`.
Clients that want no answer (acks=0) never wait, so they are left out. Each call costs O(1), amortised, and what is
remembered are the connections that were answered within the longer of the two times.
"""

from __future__ import annotations

from headrace.protocol.request import ClientConnection

DEPTH_REQUESTS = 20
"""A connection that stays below its depth for so many requests has a lower one."""


class ClientActivity:
    """Connections by what they can be expected to do next. Times on Clock.monotonic(), in seconds."""

    def __init__(self, window_s: float, refill_s: float) -> None:
        self._window_s = window_s
        self._refill_s = refill_s
        self._waiting = 0
        """Connections with an unanswered request."""
        self._free: dict[ClientConnection, float] = {}
        """Connections without one, by the time of their last answer, the longest silent first."""
        self._refilling: dict[ClientConnection, float] = {}
        """Connections below their depth, in the same way."""

    def sent(self, connection: ClientConnection) -> None:
        """A request with acks other than 0 was appended to the open file."""
        if not connection.produce_unanswered:
            self._waiting += 1
            self._free.pop(connection, None)
        connection.produce_unanswered += 1
        connection.produce_below_depth += 1
        if (
            connection.produce_unanswered >= connection.produce_depth
            or connection.produce_below_depth >= DEPTH_REQUESTS
        ):
            connection.produce_depth = connection.produce_unanswered
            connection.produce_below_depth = 0
            self._refilling.pop(connection, None)

    def answered(self, connection: ClientConnection, now: float) -> None:
        """One of its requests was answered."""
        connection.produce_unanswered -= 1
        if not connection.produce_unanswered:
            self._waiting -= 1
        self._forget_before(now)
        if connection.closed:
            return
        if not connection.produce_unanswered:
            self._free[connection] = now
        self._refilling.pop(connection, None)
        self._refilling[connection] = now

    def all_wait(self, now: float) -> bool:
        """Return whether every active connection waits for an answer, and there is one."""
        self._forget_before(now)
        return self._waiting > 0 and not self._free

    def any_refills(self, now: float) -> bool:
        """Return whether a connection below its depth was answered a moment ago."""
        self._forget_before(now)
        return bool(self._refilling)

    def _forget_before(self, now: float) -> None:
        _forget(self._free, now - self._window_s)
        _forget(self._refilling, now - self._refill_s)


def _forget(answered_at: dict[ClientConnection, float], before: float) -> None:
    """Remove the first connections as far as they were answered earlier, or are gone."""
    while answered_at:
        connection, at = next(iter(answered_at.items()))
        if at >= before and not connection.closed:
            return
        del answered_at[connection]
