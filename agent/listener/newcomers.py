"""Connections that wait for a client which has not said who it is: how many, for how long, and which one is closed.

Place: the one rule of all listeners. On Kafka's listeners, also those for agents, a connection is a newcomer until its
PROXY header, its TLS handshake and its authentication are complete (accepted.py). On the HTTP listeners of agents and
console, where every request shows its own token, it is one whenever it waits for its client
(cli/process/http_server.py).
Invariant: at most `most()` connections are newcomers. One more closes the oldest of the address that has the most of
them, so that no address can keep out another, and no other connection is closed for it.
"""

from __future__ import annotations

from collections.abc import Callable


class Newcomer:
    """One connection. Compared by identity."""

    __slots__ = ("_among", "address", "close", "since")

    def __init__(self, among: Newcomers, address: str, since: float, close: Callable[[bool], None]) -> None:
        self._among, self.address, self.since, self.close = among, address, since, close

    def leave(self) -> None:
        """It is known now, or has ended. Safe to call again."""
        self._among.remove(self)

    def move(self, address: str) -> None:
        """A balancer has named the client."""
        self._among.move(self, address)


class Newcomers:
    """The newcomers of one listener, or of all that share a limit. For one event loop."""

    def __init__(self, most: Callable[[], int], seconds: float, *, fresh_seconds: float = 0.0) -> None:
        """`seconds`: how long one may stay. One that is younger than `fresh_seconds` is not closed for a newer one of
        its address: when thousands of clients connect at once, some get through, instead of each closing the one
        before it."""
        self.seconds = seconds
        self._most, self._fresh_seconds = most, fresh_seconds
        self._all: dict[Newcomer, None] = {}
        """In the order of their arrival."""
        self._by_address: dict[str, dict[Newcomer, None]] = {}
        self._by_count: list[dict[str, None]] = [{}]
        """The addresses that have so many, in the order in which they reached this number; the last is not empty."""

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, address: str, now: float, close: Callable[[bool], None]) -> Newcomer:
        """Add a connection; one is closed if there are too many, maybe this one. `close` is called with whether it
        is for others (else its time is over), after it was removed."""
        newcomer = Newcomer(self, address, now, close)
        self._all[newcomer] = None
        self._insert(newcomer)
        while len(self._all) > max(self._most(), 0):
            self.displace(now)
        return newcomer

    def displace(self, now: float) -> bool:
        """Close one to make room; False if there is none."""
        if not self._all:
            return False
        of_address = self._by_address[next(iter(self._by_count[-1]))]
        chosen = next(iter(of_address))
        if now - chosen.since < self._fresh_seconds:
            chosen = next(reversed(of_address))
        self._end(chosen, for_others=True)
        return True

    def expire(self, now: float) -> None:
        """Close those that have waited for `seconds`."""
        while self._all and now - next(iter(self._all)).since >= self.seconds:
            self._end(next(iter(self._all)), for_others=False)

    def remove(self, newcomer: Newcomer) -> None:
        """The same as Newcomer.leave."""
        if newcomer in self._all:
            del self._all[newcomer]
            self._take_out(newcomer)

    def move(self, newcomer: Newcomer, address: str) -> None:
        """The same as Newcomer.move."""
        if newcomer in self._all:
            self._take_out(newcomer)
            newcomer.address = address
            self._insert(newcomer)

    def _end(self, newcomer: Newcomer, *, for_others: bool) -> None:
        self.remove(newcomer)
        newcomer.close(for_others)

    def _insert(self, newcomer: Newcomer) -> None:
        of_address = self._by_address.setdefault(newcomer.address, {})
        of_address[newcomer] = None
        self._count(newcomer.address, len(of_address) - 1, len(of_address))

    def _take_out(self, newcomer: Newcomer) -> None:
        of_address = self._by_address[newcomer.address]
        del of_address[newcomer]
        if not of_address:
            del self._by_address[newcomer.address]
        self._count(newcomer.address, len(of_address) + 1, len(of_address))

    def _count(self, address: str, before: int, after: int) -> None:
        """The address has `after` now: an operation costs the same for any number of addresses."""
        if before:
            del self._by_count[before][address]
        if after == len(self._by_count):
            self._by_count.append({})
        if after:
            self._by_count[after][address] = None
        while len(self._by_count) > 1 and not self._by_count[-1]:
            self._by_count.pop()
