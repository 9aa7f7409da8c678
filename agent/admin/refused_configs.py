"""Log lines about refused topic configs: several applications do not show their users why a topic was not created.

Place: called by CreateTopics and by the requests that change configs, with each result.
Invariant: a client cannot fill the log: there are at most LINES_PER_MINUTE lines per agent and kind of request, each of
limited length.
"""

from __future__ import annotations

import logging

from kio.schema.errors import ErrorCode

from headrace.protocol.request import Request

logger = logging.getLogger(__name__)

LINES_PER_MINUTE = 20
TEXT_MAX = 300


class RefusedConfigs:
    """Counts the lines of the current minute, by the times at which requests arrived."""

    def __init__(self) -> None:
        self._minute, self._lines = -1, 0

    def note(self, request: Request, topic: str, code: ErrorCode, message: str | None) -> None:
        """Log the refusal if it is about a config."""
        if code is not ErrorCode.invalid_config:
            return
        minute = int(request.received_at // 60)
        if minute != self._minute:
            self._minute, self._lines = minute, 0
        self._lines += 1
        if self._lines <= LINES_PER_MINUTE:
            logger.warning(
                "topic config refused: client_id=%s topic=%s reason=%s",
                *((text or "")[:TEXT_MAX] for text in (request.client_id, topic, message)),
            )
