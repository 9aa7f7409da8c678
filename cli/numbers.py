"""Numbers on the command line, each checked against the bounds of its protocol field.

Place: the `type` of a command's numeric flags.
Invariant: a number that the protocol cannot carry, or that has no meaning there, is a usage error that names the
bounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

INT16_MAX = 2**15 - 1
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def whole(low: int, high: int) -> Callable[[str], int]:
    """Return a parser for argparse's `type`: a whole number from `low` to `high`."""

    def number(text: str) -> int:
        try:
            found = int(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"not a whole number: {text}") from error
        if not low <= found <= high:
            raise argparse.ArgumentTypeError(f"not between {low} and {high}: {text}")
        return found

    return number
