"""What the pages are made from, and the values in their URLs.

Place: given to every module of pages/.
Invariant: a URL says everything that a page shows, so links can be shared. A value that makes no sense is InvalidError
with the name of the field.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from headrace.cli.console.cluster_link import ClusterLink
from headrace.cli.console.form_tokens import FormTokens
from headrace.cli.console.metastore_link import MetastoreLink
from headrace.cli.console.rendering import Pages
from headrace.cli.console.sampler import Sampler
from headrace.cli.console.table_link import TableLink
from headrace.cli.numbers import INT64_MAX
from headrace.storage.clock import Clock
from headrace.storage.errors import InvalidError


@dataclass(frozen=True, slots=True)
class ConsoleParts:
    """`metastore` is None if only the cluster's address is known."""

    link: ClusterLink
    metastore: MetastoreLink | None
    tables: TableLink
    sampler: Sampler
    pages: Pages
    tokens: FormTokens
    allows_changes: bool
    clock: Clock


def whole_number(text: str, field: str, low: int = 0, high: int = INT64_MAX) -> int | None:
    """Return None for an empty text. InvalidError for everything but a number from low to high."""
    if not text.strip():
        return None
    try:
        found = int(text) if len(text) <= 20 else high + 1
    except ValueError as error:
        raise InvalidError(f"{field}: not a whole number: {text[:40]}") from error
    if not low <= found <= high:
        raise InvalidError(f"{field}: not between {low} and {high}: {text[:40]}")
    return found


def time_ms(text: str, field: str) -> int:
    """Return the milliseconds of a date and time in ISO 8601, UTC unless it says another zone, or of milliseconds
    since 1970.
    """
    if text.strip().isdecimal():
        return whole_number(text, field) or 0
    try:
        at = datetime.datetime.fromisoformat(text.strip())
        return max(0, int((at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp() * 1000))
    except (ValueError, OverflowError) as error:
        raise InvalidError(f"{field}: not a date and time like 2026-01-31T12:00: {text[:40]}") from error


@dataclass(frozen=True, slots=True)
class PageOfRows:
    """Rows of a long list that a page shows; pages count from 1."""

    number: int
    size: int
    total: int

    @classmethod
    def of(cls, text: str, size: int, total: int) -> PageOfRows:
        """The last page for a number that is too high."""
        last = max(1, -(-total // size))
        return cls(min(whole_number(text, "page", 1) or 1, last), size, total)

    @property
    def rows(self) -> slice:
        """Rows of the list."""
        return slice((self.number - 1) * self.size, self.number * self.size)

    @property
    def last(self) -> int:
        """Its number."""
        return max(1, -(-self.total // self.size))
