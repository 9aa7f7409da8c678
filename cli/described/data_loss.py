"""Decides whether a changed config may remove records. Pure.

Place: under diff.py.
Invariant: a change that may remove records is never taken for harmless. A value that is unknown is taken for the worse
one.
"""

from __future__ import annotations

FOREVER = -1
_LIMITS = frozenset(
    (
        "retention.ms",
        "retention.bytes",
        "table.retention.ms",
        "log.retention.ms",
        "log.retention.minutes",
        "log.retention.hours",
        "log.retention.bytes",
    )
)
"""Configs that say how much is kept, in the topic or in its table: a lower value removes records."""
_POLICIES = frozenset(("cleanup.policy", "log.cleanup.policy"))
"""Configs that say what removes records: delete, compact."""


def may_remove_records(config: str, before: str | None, after: str | None) -> bool:
    """Return whether records that `before` keeps may be removed by `after`. None: unknown."""
    if config in _LIMITS:
        kept, will_keep = _number(before), _number(after)
        if will_keep == FOREVER:
            return False
        return kept is None or will_keep is None or kept == FOREVER or will_keep < kept
    if config in _POLICIES:
        return after is None or before is None or not _policies(after) <= _policies(before)
    return False


def _number(text: str | None) -> int | None:
    try:
        found = None if text is None else int(text)
    except ValueError:
        return None
    return FOREVER if found is not None and found < 0 else found


def _policies(text: str) -> set[str]:
    return {part.strip().lower() for part in text.split(",") if part.strip()}
