"""Decide when to close the open file before its linger ends: the rule, and nothing else.

Place: asked by the flusher (flusher.py) whenever bytes arrived, answers left or time passed. Pure.
A file is closed early when waiting longer gains nothing: no Produce byte has arrived for `idle_s`
(IDLE), or every client that could add to it waits for an answer itself (CLIENTS_WAIT). It is never
closed early while closing gains nothing: when memory is short or uploads queue. A small file stays open for `idle_s`
while more is expected, so that one file takes what clients send after their answers, and not one file for the first of
them and another one for the rest.
Invariant: a file is closed at the latest `linger_s` after its first batch. Flushes are bounded: in
any time, files below `free_bytes` number at most the linger's own (time / linger_s) plus the budget's
(flush_budget.py); larger ones at most bytes / free_bytes. While the budget is short, a file for which clients wait is
closed before one that is merely idle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.agent.produce.flush_budget import TIME_EPSILON_S, CommitPressure, FlushBudget
from headrace.agent.produce.recent import RecentCounts
from headrace.agent.produce.trace import EARLY_REASONS, FlushReason


@dataclass(frozen=True, slots=True)
class FlushLimits:
    """`linger_s`, `idle_s` in seconds; `rate` in early flushes earned per second, inf: unlimited, 0: never early."""

    linger_s: float
    idle_s: float
    rate: float = math.inf
    burst: int = 20
    """Early flushes with which the budget begins, and which may follow each other at once."""
    saved_max: int = 0
    """Most early flushes that are saved up; `burst` if that is more."""
    rate_max: float = math.inf
    """Most early flushes per second, however many are saved up; `rate` if that is more."""
    free_bytes: int = 4 << 20
    """A file of this size or more costs no token: the price of its PUT is small beside its bytes."""
    full_bytes: int = 512 << 10
    """A file of this size or more waits for no client: its bytes cost more than the file itself."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of the open file and of the clients when the rule is asked."""

    opened_at: float
    size_bytes: int
    last_byte_at: float
    """The time when the last byte of a Produce request arrived, whole or not."""
    clients_wait: bool
    """A connection waits for an answer, none has sent half a request, and none that was answered in the last linger is
    free to send."""
    expects_more: bool
    """Clients were answered a moment ago, or will be soon: they are about to send again."""
    congested: bool
    """Memory is short or uploads queue: closing the file would not store it any sooner."""


@dataclass(frozen=True, slots=True)
class FlushVerdict:
    """`reason`: close the file now. Otherwise ask again at `again_at`, or when something happens before."""

    reason: FlushReason | None
    again_at: float


class FlushPolicy:
    """Judges one open file at a time. The caller reports every flush (`closed`), because all of them use the budget."""

    def __init__(self, limits: FlushLimits, now: float) -> None:
        self.limits = limits
        self.budget = FlushBudget(limits.rate, limits.rate_max, limits.burst, limits.saved_max, now)
        self._pressure = CommitPressure()
        self._early = RecentCounts()

    def judge(self, found: Situation, now: float) -> FlushVerdict:
        """Return whether to close the open file now."""
        due_at = found.opened_at + self.limits.linger_s
        if now >= due_at - TIME_EPSILON_S:
            return FlushVerdict(FlushReason.LINGER, due_at)
        if not self.limits.rate:
            return FlushVerdict(None, due_at)
        idle_at = found.last_byte_at + self.limits.idle_s
        if found.clients_wait:
            reason, ready_at = FlushReason.CLIENTS_WAIT, now
        else:
            reason, ready_at = FlushReason.IDLE, idle_at
        if found.expects_more and found.size_bytes < self.limits.full_bytes:
            ready_at = max(ready_at, found.opened_at + self.limits.idle_s)
        if found.congested:
            return FlushVerdict(None, min(due_at, max(ready_at, now + self.limits.idle_s)))
        if found.size_bytes < self.limits.free_bytes:
            self.budget.slow_down(self._pressure.steps(now), now)
            ready_at = max(ready_at, self.budget.available_at(now, client_waits=found.clients_wait))
        if now >= ready_at - TIME_EPSILON_S:
            return FlushVerdict(reason, now)
        return FlushVerdict(None, min(due_at, ready_at))

    def closed(self, reason: FlushReason, size_bytes: int, now: float) -> None:
        """A file was closed. One below `free_bytes` uses a token, if there is one, for any reason."""
        if size_bytes < self.limits.free_bytes:
            self.budget.take(now)
            if reason in EARLY_REASONS:
                self._early.add(0, now)

    def committed(self, seconds: float, now: float) -> None:
        """A commit call was answered after this time: early flushes slow down while commits are slow."""
        self._pressure.committed(seconds, now)

    def early_per_second(self, now: float) -> float:
        """Return the early flushes per second of the last minute that used the budget."""
        return self._early.per_second(now)
