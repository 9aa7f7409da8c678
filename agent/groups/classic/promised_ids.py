"""Member ids that a classic group handed out and that no member has joined with yet (KIP-394).

Place: under group.py and rebalance.py: a rebalance waits for these members too.
Invariant: an id is used once, or lapses.
"""

from __future__ import annotations

from collections.abc import Iterable

PROMISE_SECONDS = 10.0
"""Longest validity of a promised id, in seconds. Clients join with an id at once, but an answer may be lost with
the agent that forwarded it, and the group waits for it. Kafka waits for one session timeout. A client that comes
later asks for another id.
"""


class PromisedIds:
    """Ids with the time at which each lapses, and the address that asked for it."""

    def __init__(self) -> None:
        self._promised: dict[str, tuple[float, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._promised)

    def addresses(self) -> Iterable[tuple[str, str]]:
        """Each address that asked, and the id that it got."""
        return ((address, member_id) for member_id, (_, address) in self._promised.items())

    def promise(self, member_id: str, lapse_at: float, address: str) -> None:
        """The id is for one new member, until then."""
        self._promised[member_id] = lapse_at, address

    def take(self, member_id: str) -> bool:
        """Return whether it was promised; it is not any more."""
        return self._promised.pop(member_id, None) is not None

    def lapsed(self, now: float) -> list[str]:
        """The ids that have lapsed."""
        return [member_id for member_id, (at, _) in self._promised.items() if now >= at]

    def next_deadline(self) -> float | None:
        """Return when the next one lapses."""
        return min((at for at, _ in self._promised.values()), default=None)
