"""Member ids that a classic group handed out and that no member has joined with yet (KIP-394).

Place: under group.py and rebalance.py: a rebalance waits for these members too.
Invariant: an id is used once, or lapses.
"""

from __future__ import annotations


class PromisedIds:
    """Ids with the time at which each lapses."""

    def __init__(self) -> None:
        self._lapse_at: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._lapse_at)

    def promise(self, member_id: str, lapse_at: float) -> None:
        """The id is for one new member, until then."""
        self._lapse_at[member_id] = lapse_at

    def take(self, member_id: str) -> bool:
        """Whether it was promised; it is not any more."""
        return self._lapse_at.pop(member_id, None) is not None

    def lapsed(self, now: float) -> list[str]:
        """The ids that have lapsed."""
        return [member_id for member_id, at in self._lapse_at.items() if now >= at]

    def next_deadline(self) -> float | None:
        """When the next one lapses."""
        return min(self._lapse_at.values(), default=None)
