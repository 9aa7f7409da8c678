"""Tells the operator why a client was refused, where the client does not show its user our message.

Place: called by the handlers with such refusals. Java prints "Transactional Id authorization failed" for any
transaction, sarama "invalid topic" for a topic that only Kafka has, and several applications do not say why a topic
was not created.
Invariant: a client cannot fill the log: each reason is said once a minute for a client id, there are at most
LINES_PER_MINUTE lines, each of limited length, and the next line says how many were left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.protocol.request import Request
from headrace.storage.client_text import shown
from headrace.storage.repetition import LIMITED, Repetitions

logger = logging.getLogger(__name__)

LINES_PER_MINUTE = 20
REASON_CHARACTERS = 300

OnRefused = Callable[[Request, str], None]
"""Called with a request and the reason why it, or a part of it, is refused."""


def unheard(request: Request, reason: str) -> None:
    """Log nothing, for handlers in tests and benchmarks: their logs are not read."""


class RefusalLog:
    """Counts the lines of the last minute, by the times at which requests arrived."""

    def __init__(self) -> None:
        self._lines = Repetitions()
        self._all_lines = Repetitions(lines=LINES_PER_MINUTE)
        self._left_out = 0

    def refused(self, request: Request, reason: str) -> None:
        """Log that the request, or a part of it, was refused for `reason`."""
        line = shown(request.client_id) or "", shown(reason, REASON_CHARACTERS)
        now = request.received_at
        if self._lines.left_out(line, now) is None or self._all_lines.left_out("", now) is None:
            self._left_out += 1
            return
        left_out, self._left_out = self._left_out, 0
        logger.warning(
            "request refused: api_key=%d client_id=%s left_out=%d reason=%s",
            request.api_key,
            line[0],
            left_out,
            line[1],
            extra=LIMITED,
        )
