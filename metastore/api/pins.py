"""Read pins with a fixed term: files that a planned read needs are not deleted.

Place: taken before a scan is planned (headrace.scan), by processes that end before the read does and renew nothing.
Invariant: a pin is the lease of a job that no worker takes (docs/decisions/0027), so it keeps every file that was live
when it was granted, until its term ends. After that only files that are deleted meanwhile are missing: bytes that are
there are the right ones.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from headrace.metastore.api.jobs import JobToken

READ_PIN = "read"
"""The kind of these jobs; SQL knows it too."""


class GrantedPin(NamedTuple):
    """`token` is None if the asked term is longer than `max_term_ms`: nothing was granted then."""

    token: JobToken | None
    max_term_ms: int


class ReadPinApi(Protocol):
    """Taking and releasing read pins."""

    async def pin_reads(self, holder: str, term_ms: int, default_max_ms: int) -> GrantedPin:
        """Keep all files that are live now for `term_ms` on the database's clock.

        At most the cluster's read.pin.max.ms, `default_max_ms` while it has no value. A lost answer costs one pin.
        """

    async def release_pins(self, tokens: list[JobToken]) -> None:
        """End these pins before their term. Idempotent."""
