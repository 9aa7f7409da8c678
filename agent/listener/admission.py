"""Judges new connections: how many there may be, of one address and of all, and how fast they may come.

Place: asked for every accepted socket before a byte is read (accepted.py); behind a balancer, once the client is named.
Invariant: no address can take all connections. The last tenth of max.connections is left to addresses that have
few, and `local_extra` more are left to this machine, so that its operator is never locked out, not even by a limit
that is set too low.
Source: Kafka's max.connections, max.connections.per.ip, max.connection.creation.rate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from headrace.storage.clock import Clock

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
