"""The requests that wait for one file, and their deadlines.

Place: filled by the buffer, asked by acknowledge.
Invariant: a request is in one file only, because its batches are never split over two.
"""

from __future__ import annotations

import math

from headrace.agent.produce.pending import PendingRequest


class WaitingRequests:
    """Waiting requests in order of arrival."""

    __slots__ = ("_first_deadline", "requests")

    def __init__(self) -> None:
        self.requests: list[PendingRequest] = []
        self._first_deadline = math.inf

    def add(self, request: PendingRequest) -> None:
        """One more request."""
        self.requests.append(request)
        self._first_deadline = min(self._first_deadline, request.deadline)

    @property
    def all_answered(self) -> bool:
        """Whether every request has an answer, if only because its deadline passed."""
        return all(request.is_answered for request in self.requests)

    def expire(self, now: float) -> int:
        """Answer the requests that are past their deadline; how many those were."""
        if now < self._first_deadline:
            return 0
        waiting = [request for request in self.requests if not request.is_answered]
        late = [request for request in waiting if request.deadline <= now]
        for request in late:
            request.answer()
        self._first_deadline = min((r.deadline for r in waiting if r.deadline > now), default=math.inf)
        return len(late)
