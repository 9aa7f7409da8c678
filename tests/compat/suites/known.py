"""Failures of the suites that have a reason, by a pattern over the test's name.

Place: read by __main__.py.
Invariant: a pattern names what is not built or is another product's; never a fault of ours.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Known(NamedTuple):
    """Tests of `suite` (a pattern) whose name matches `test` fail because of `reason`."""

    suite: str
    test: str
    reason: str


KNOWN: tuple[Known, ...] = ()


def reason_for(suite: str, test: str) -> str | None:
    """Why this test is expected to fail; None when it should pass."""
    for known in KNOWN:
        if re.search(known.suite, suite) and re.search(known.test, test):
            return known.reason
    return None
