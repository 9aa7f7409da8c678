"""A token bucket that may be in debt, and one that several agents share. Pure: times come in.

Place: one per limit and agent; sharing.py brings what other agents used.
Invariant: what was used is never forgotten. A use is never refused: it makes a debt, and the client waits until the
debt is paid. In each agent's bucket the level is the cluster's: own use is subtracted at once, that of others when
it is reported. Until then the agent assumes that others use what is left of the rate after its own share.
"""

from __future__ import annotations

BURST_SECONDS = 1.0
"""After a pause a client may use so many seconds of its rate at once."""
MUTATION_BURST_SECONDS = 10.0
"""The same as BURST_SECONDS, for changes of partitions: they come seldom and many at once (KIP-599)."""


class Bucket:
    """Bucket of one agent alone."""

    __slots__ = ("_at", "_burst_seconds", "_level", "generation", "rate", "share", "used")

    def __init__(self, rate: float, now: float, burst_seconds: float = BURST_SECONDS) -> None:
        self.rate = self.share = rate
        self._burst_seconds = burst_seconds
        self._level = self._most
        self._at = now
        self.used = 0.0
        """By this agent, in all."""
        self.generation = 0
        """Another one for each bucket of an agent."""

    def spend(self, amount: float, now: float) -> float:
        """Use it; the seconds to wait until nothing is owed."""
        self._fill(now)
        self._level -= amount
        self.used += amount
        return -self._level / self.share if self._level < 0 else 0.0

    def wait(self, now: float) -> float:
        """Spend nothing: return how long to wait."""
        return self.spend(0.0, now)

    def level(self, now: float) -> float:
        """Return what may be used at once; negative: a debt."""
        self._fill(now)
        return self._level

    def is_full(self, now: float) -> bool:
        """Return whether a new bucket would be the same."""
        return self.level(now) >= self._most

    def change_rate(self, rate: float, now: float) -> None:
        """The quota was changed. A debt stays."""
        self._fill(now)
        self.share *= rate / self.rate
        self.rate = rate
        self._level = min(self._level, self._most)

    @property
    def _most(self) -> float:
        return self.rate * self._burst_seconds

    def _fill(self, now: float) -> None:
        self._level = min(self._most, self._level + self.share * (now - self._at))
        self._at = now


class SharedBucket(Bucket):
    """Shared bucket of all agents together."""

    __slots__ = ("_corrected_at",)

    def __init__(self, rate: float, now: float, burst_seconds: float = BURST_SECONDS) -> None:
        super().__init__(rate, now, burst_seconds)
        self._corrected_at = now

    def correct(self, used_by_others: float, share: float, now: float) -> None:
        """Set what other agents used since the last call, and the share of the rate that this agent fills with
        until the next.
        """
        self._fill(now)
        assumed = (self.rate - self.share) * (now - self._corrected_at)
        self._level = min(self._most, self._level + assumed - used_by_others)
        self.share, self._corrected_at = share, now
