"""Budget of early flushes: how many may be made, as money over time and as a rate.

Place: asked by the rule (flush_policy.py), which reports every closed file. Pure: times are parameters.
Two limits hold at once. The savings begin with `burst` tokens, gain `rate` a second and hold at most `saved_max`:
they bound the price of a month. The rate limit holds at most `burst` tokens and gains `rate_max` a second: it
bounds what flushes do to Postgres and to merging. It is halved for each doubling of the commit p95 above
SLOW_COMMIT_S, but is never below `rate`. A flush for IDLE leaves `reserve` tokens in both, for clients that wait.
Invariant: in any time, early flushes number at most time * rate + what was saved when it began, and at most
time * rate_max + burst. Tokens are integers in billionths and times in nanoseconds, so nothing is lost by rounding.
"""

from __future__ import annotations

import math

from headrace.agent.produce.recent import RecentCounts

EARLY_PER_SECOND_S3 = 10
"""The number of flushes that a linger of 100 ms makes under load: early flushes never raise an agent's bill of a month
above that of steady load, because what they use was saved before."""
TIME_EPSILON_S = 1e-6
"""A timer may fire this much before its time."""
SLOW_COMMIT_S = 0.05
"""The commit p95 above which early flushes are slowed down."""
SLOW_STEPS = 3
"""How many doublings of SLOW_COMMIT_S are told apart."""
COMMITS_MIN = 20
"""Fewer commits in the last minute say nothing about their p95."""
_NANOS = 1_000_000_000


class FlushTokens:
    """Bucket of tokens: `tokens` at first; `rate` more a second up to `capacity`. Times on Clock.monotonic()."""

    def __init__(self, rate: float, capacity: int, tokens: int, now: float) -> None:
        """`rate` is an integer, or inf: unlimited."""
        self._rate = rate
        self._capacity = capacity * _NANOS
        self._held = tokens * _NANOS
        self._at = _nanoseconds(now)

    @property
    def rate(self) -> float:
        return self._rate

    def change_rate(self, rate: float, now: float) -> None:
        """Gain `rate` tokens a second from now on."""
        self._refill(now)
        self._rate = rate

    def held(self, now: float) -> float:
        """Return the number of tokens; inf if unlimited."""
        self._refill(now)
        return math.inf if self._rate == math.inf else max(self._held, 0) / _NANOS

    def available_at(self, now: float, reserve: int) -> float:
        """Return when there is a token more than the reserve: `now` or later; infinity for a rate of 0 and too few."""
        self._refill(now)
        missing = (1 + reserve) * _NANOS - self._held
        if missing <= 0 or self._rate == math.inf:
            return now
        return now + missing / self._rate / _NANOS if self._rate else math.inf

    def take(self, now: float) -> None:
        """Use a token. None below zero, but for the part of one that a timer fired too early."""
        self._refill(now)
        if self._rate != math.inf:
            self._held = max(self._held - _NANOS, -int(self._rate * TIME_EPSILON_S * _NANOS))

    def _refill(self, now: float) -> None:
        at = _nanoseconds(now)
        if self._rate != math.inf:
            self._held = min(self._held + (at - self._at) * int(self._rate), self._capacity)
        self._at = at


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


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NANOS)
