"""Which clients could still add to the open file.

Place: the flusher reports every appended request, and asks; the request reports its own answer.
Invariant: a connection counts as active for `window_s` after its last request with acks other than 0;
clients that want no answer (acks=0) never wait, so they are left out. Each call costs O(1), amortised.
"""

from __future__ import annotations

from headrace.protocol.request import ClientConnection


class ClientActivity:
    """Connections by the time of their last request, and how many of them wait for no answer."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._sent_at: dict[ClientConnection, float] = {}
        """Active connections, the longest silent first."""
        self._free = 0
        """Active connections without an unanswered request: they may send at any time."""

    def sent(self, connection: ClientConnection, now: float) -> None:
        """A request with acks other than 0 was appended to the open file."""
        if self._sent_at.pop(connection, None) is not None and not connection.produce_unanswered:
            self._free -= 1
        self._sent_at[connection] = now
        connection.produce_unanswered += 1

    def answered(self, connection: ClientConnection) -> None:
        """One of its requests was answered."""
        connection.produce_unanswered -= 1
        if not connection.produce_unanswered and connection in self._sent_at:
            self._free += 1

    def all_wait(self, now: float) -> bool:
        """Whether every active connection waits for an answer, and there is one."""
        while self._sent_at:
            connection, sent_at = next(iter(self._sent_at.items()))
            if now - sent_at <= self._window_s and not connection.closed:
                break
            del self._sent_at[connection]
            self._free -= not connection.produce_unanswered
        return bool(self._sent_at) and not self._free
