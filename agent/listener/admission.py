"""Limits how many connections there may be: of one address, of all, of clients that have not said who they are.

Place: Admission is asked for every accepted socket before a byte is read (connection_limits.py); behind a balancer,
once the client is named. Newcomers is the one rule of all listeners for connections that wait for their client: on
Kafka's listeners, also those for agents, a connection is a newcomer until its PROXY header, its TLS handshake and
its authentication are complete; on the HTTP listeners of agents and console, where every request shows its own
token, it is one whenever it waits for its client (cli/process/http_server.py).
Invariant: no address can take all connections. The last tenth of max.connections is left to addresses that have few,
and `local_extra` more are left to this machine, so that its operator is never locked out, not even by a limit that
is set too low. At most `most()` connections are newcomers: one more closes the oldest of the address that has the
most of them, so that no address can keep out another, and no other connection is closed for it.
Source: Kafka's max.connections, max.connections.per.ip, max.connection.creation.rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from headrace.storage.clock import Clock


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


FEW = 10
"""Connections that an address may have of the reserve."""
LOCAL_EXTRA = 10
LOCAL = frozenset({"127.0.0.1", "::1"})
_BURST_SECONDS = 1.0


class Admission:
    """The connections of one listener, by address. For one event loop."""

    def __init__(
        self,
        connections_max: Callable[[], int],
        clock: Clock,
        *,
        per_ip_max: int = 2**31 - 1,
        rate_max: int = 2**31 - 1,
        local_extra: int = 0,
        is_in_quota: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`rate_max` in connections per second; `local_extra` connections beyond the limit are for this machine.
        `is_in_quota`: whether an address may open one more now."""
        self._local_extra = local_extra
        self.is_in_quota = is_in_quota
        self._connections_max = connections_max
        self._clock = clock
        self._per_ip_max = per_ip_max
        self._rate_max = rate_max
        self._by_address: Counter[str] = Counter()
        self._total = 0
        self._tokens = float(rate_max)
        self._tokens_at = clock.monotonic()

    def refusal(self, address: str, *, draining: bool) -> str:
        """The reason to refuse a new connection; empty if it is accepted."""
        if draining:
            return "drain"
        if self._is_full(address):
            return "too_many"
        if self._by_address[address] >= self._per_ip_max:
            return "too_many_of_address"
        if not self.is_in_quota(address):
            return "too_fast_of_address"
        return "" if self._take_token() else "too_fast"

    def has_room(self, address: str, *, without: int = 0) -> bool:
        """Return whether the limits of all connections allow one more of this address, if `without` of others ended."""
        return not self._is_full(address, without)

    def opened(self, address: str) -> None:
        """A connection was accepted."""
        self._by_address[address] += 1
        self._total += 1

    def closed(self, address: str) -> None:
        """It ended."""
        self._total -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _is_full(self, address: str, without: int = 0) -> bool:
        most, own = self._connections_max(), self._by_address[address]
        if address in LOCAL and own < self._local_extra:
            most += self._local_extra
        elif own >= FEW:
            most -= most // 10
        return self._total - without >= most

    def _take_token(self) -> bool:
        now = self._clock.monotonic()
        refill = (now - self._tokens_at) * self._rate_max
        self._tokens = min(self._tokens + refill, self._rate_max * _BURST_SECONDS)
        self._tokens_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
