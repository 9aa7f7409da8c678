"""Patterns of others, in RE2's syntax: what they may cost is bounded.

Place: under the subscriptions of consumer groups, ListTransactions, and the topics that a link names.
Invariant: any pattern matches in time linear in the text, and its program is bounded: no pattern can stop a process
(decisions/0022). Kafka uses the same syntax.
"""

from __future__ import annotations

import re2

PATTERN_CHARACTERS_MAX = 4_096
PROGRAM_BYTES = 256 * 1024
"""Memory that one pattern's program and its automaton may take."""


def compile_pattern(pattern: str) -> re2._Regexp:
    """ValueError if it is not RE2 syntax, or too large."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise ValueError(f"pattern of more than {PATTERN_CHARACTERS_MAX} characters")
    options = re2.Options()
    options.max_mem = PROGRAM_BYTES
    options.never_capture = True  # else each pair of parentheses costs memory that max_mem does not count
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"not RE2 syntax: {text}") from error
