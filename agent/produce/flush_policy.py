"""Decide when to close the open file before its linger ends: the rule, with its budget.

Place: asked by the flusher (flusher.py) whenever bytes arrived, answers left or time passed; every closed file is
reported to it. `headrace cost` takes the price of flushes from here, as does the metric of an agent. Pure: times are
parameters.
A file is closed early when waiting longer gains nothing: no Produce byte has arrived for `idle_s` (IDLE), or every
client that could add to it waits for an answer itself (CLIENTS_WAIT). It is never closed early while closing gains
nothing: when memory is short or uploads queue. A small file stays open for `idle_s` while more is expected, so that
one file takes what clients send after their answers, and not one file for the first of them and another one for the
rest.
The budget has two limits that hold at once. The savings begin with `burst` tokens, gain `rate` a second and hold at
most `saved_max`: they bound the price of a month. The rate limit holds at most `burst` tokens and gains `rate_max` a
second: it bounds what flushes do to Postgres and to merging. It is halved for each doubling of the commit p95 above
SLOW_COMMIT_S, but is never below `rate`. A flush for IDLE leaves `reserve` tokens in both, for clients that wait.
Invariant: a file is closed at the latest `linger_s` after its first batch. Flushes are bounded: in any time, files
below `free_bytes` number at most the linger's own (time / linger_s) plus the budget's; larger ones at most bytes /
free_bytes. While the budget is short, a file for which clients wait is closed before one that is merely idle. In any
time, early flushes number at most time * rate + what was saved when it began, and at most time * rate_max + burst.
Tokens are integers in billionths and times in nanoseconds, so nothing is lost by rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.agent.produce.files import EARLY_REASONS, FlushReason

MONTH_HOURS = 730
MONTH_SECONDS = MONTH_HOURS * 3600
PUT_1000_DOLLARS = 0.005
"""S3 Standard in us-east-1, as in cli/cost/prices.toml."""


def dollars_per_month(requests_s: float, price_1000: float = PUT_1000_DOLLARS) -> float:
    """Return what so many requests a second cost in a month, at the price of 1,000."""
    return requests_s * MONTH_SECONDS / 1000 * price_1000


SPAN_S = 60
SLOT_S = 10
"""Counts are forgotten a slot at a time."""


class RecentCounts:
    """Counts of several kinds of events. Times on Clock.monotonic(), in seconds.

    Invariant: only `add` changes it; any thread may read, as the one that shows metrics does.
    """

    def __init__(self, kinds: int = 1) -> None:
        self._kinds = kinds
        self._slots: tuple[tuple[int, list[int]], ...] = ()

    def add(self, kind: int, now: float) -> None:
        """Count an event."""
        slot = int(now // SLOT_S)
        if not self._slots or self._slots[-1][0] != slot:
            self._slots = (*self._since(slot), (slot, [0] * self._kinds))
        self._slots[-1][1][kind] += 1

    def totals(self, now: float) -> list[int]:
        """Return the counts by kind."""
        counts = [counts for _, counts in self._since(int(now // SLOT_S))]
        return [sum(each) for each in zip(*counts, strict=True)] if counts else [0] * self._kinds

    def per_second(self, now: float) -> float:
        """Return the rate of all kinds together."""
        return sum(self.totals(now)) / (SPAN_S + now % SLOT_S)

    def _since(self, slot: int) -> list[tuple[int, list[int]]]:
        return [each for each in self._slots if each[0] >= slot - SPAN_S // SLOT_S]


EARLY_PER_SECOND_S3 = 10
"""The number of flushes that a linger of 100 ms makes under load: early flushes never raise an agent's bill of a month
above that of steady load, because what they use was saved before."""
TIME_EPSILON_S = 1e-6
"""A timer may fire this much before its time."""
SLOW_COMMIT_S = 0.05
"""The commit p95 above which early flushes are slowed down."""
SLOW_STEPS = 3
"""The number of doublings of SLOW_COMMIT_S that count as different."""
COMMITS_MIN = 20
"""Fewer commits in the last minute say nothing about their p95."""
_NANOS = 1_000_000_000


class FlushTokens:
    """Bucket of tokens: `tokens` at first; `rate` more a second up to `capacity`. Times on Clock.monotonic().

    Invariant: `held` and `available_at` change nothing, so that any thread may ask.
    """

    def __init__(self, rate: float, capacity: int, tokens: int, now: float) -> None:
        """`rate` is an integer, or inf: unlimited."""
        self.rate = rate
        self._capacity = capacity * _NANOS
        self._held = tokens * _NANOS
        self._at = round(now * _NANOS)

    def change_rate(self, rate: float, now: float) -> None:
        """Gain `rate` tokens a second from now on."""
        self._refill(now)
        self.rate = rate

    def held(self, now: float) -> float:
        """Return the number of tokens; inf if unlimited."""
        return math.inf if self.rate == math.inf else max(self._refilled(now), 0) / _NANOS

    def available_at(self, now: float, reserve: int) -> float:
        """Return when there is a token more than the reserve: `now` or later; infinity for a rate of 0 and too few."""
        missing = (1 + reserve) * _NANOS - self._refilled(now)
        if missing <= 0 or self.rate == math.inf:
            return now
        return now + missing / self.rate / _NANOS if self.rate else math.inf

    def take(self, now: float) -> None:
        """Use a token. None below zero, but for the part of one that a timer fired too early."""
        self._refill(now)
        if self.rate != math.inf:
            self._held = max(self._held - _NANOS, -int(self.rate * TIME_EPSILON_S * _NANOS))

    def _refill(self, now: float) -> None:
        self._held, self._at = self._refilled(now), round(now * _NANOS)

    def _refilled(self, now: float) -> int:
        if self.rate == math.inf:
            return self._held
        return min(self._held + (round(now * _NANOS) - self._at) * int(self.rate), self._capacity)


class FlushBudget:
    """Savings and rate limit. With a `rate` of 0 there are no early flushes, with inf there is no limit."""

    def __init__(self, rate: float, rate_max: float, burst: int, saved_max: int, now: float) -> None:
        burst = burst if rate else 0
        self._rate, self._rate_max = rate, max(rate_max, rate) if rate else 0
        self.reserve = burst // 2
        self._savings = FlushTokens(rate, max(saved_max, burst), burst, now)
        self._limit = FlushTokens(self._rate_max, burst, burst, now)

    def available_at(self, now: float, *, client_waits: bool) -> float:
        """Return when a small file may be closed early; the reserve is for clients that wait."""
        reserve = 0 if client_waits else self.reserve
        return max(self._savings.available_at(now, reserve), self._limit.available_at(now, reserve))

    def take(self, now: float) -> None:
        """A small file was closed."""
        self._savings.take(now)
        self._limit.take(now)

    def slow_down(self, steps: int, now: float) -> None:
        """Halve the highest rate so many times, never below what is earned."""
        rate = self._rate_max if self._rate_max == math.inf else max(int(self._rate_max) >> steps, self._rate)
        if rate != self._limit.rate:
            self._limit.change_rate(rate, now)

    def saved(self, now: float) -> float:
        """Return the number of early flushes that are saved up; inf if they are unlimited."""
        return self._savings.held(now)

    @property
    def rate_limit(self) -> float:
        """Early flushes per second that may be made now while there are savings."""
        return self._limit.rate


class CommitPressure:
    """How slow this agent's commits of the last minute are. What an agent cannot see is how far merging is behind."""

    def __init__(self) -> None:
        self._commits = RecentCounts(SLOW_STEPS + 1)

    def committed(self, seconds: float, now: float) -> None:
        """A commit call was answered after this time."""
        step = next((step for step in range(SLOW_STEPS) if seconds <= SLOW_COMMIT_S * (1 << step)), SLOW_STEPS)
        self._commits.add(step, now)

    def steps(self, now: float) -> int:
        """Return 0 while the p95 is at most SLOW_COMMIT_S, 1 up to twice that, and so on up to SLOW_STEPS."""
        counts = self._commits.totals(now)
        total = sum(counts)
        if total < COMMITS_MIN:
            return 0
        below = 0
        for step, count in enumerate(counts):
            below += count
            if below * 20 >= total * 19:
                return step
        raise AssertionError("the last step has all commits")


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
        self._is_limited = limits.rate != math.inf
        """Without a limit, the budget is not asked, and nothing is taken from it."""

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
        if self._is_limited and found.size_bytes < self.limits.free_bytes:
            self.budget.slow_down(self._pressure.steps(now), now)
            ready_at = max(ready_at, self.budget.available_at(now, client_waits=found.clients_wait))
        if now >= ready_at - TIME_EPSILON_S:
            return FlushVerdict(reason, now)
        return FlushVerdict(None, min(due_at, ready_at))

    def closed(self, reason: FlushReason, size_bytes: int, now: float) -> None:
        """A file was closed. One below `free_bytes` uses a token, if there is one, for any reason."""
        if size_bytes < self.limits.free_bytes:
            if self._is_limited:
                self.budget.take(now)
            if reason in EARLY_REASONS:
                self._early.add(0, now)

    def committed(self, seconds: float, now: float) -> None:
        """A commit call was answered after this time: early flushes slow down while commits are slow."""
        if self._is_limited:
            self._pressure.committed(seconds, now)

    def early_per_second(self, now: float) -> float:
        """Return the early flushes per second of the last minute that used the budget."""
        return self._early.per_second(now)
