"""Decides when the PUT of a flush file gets a second, identical request.

Place: asked by HedgedStore (hedging.py). Pure: times are parameters, in seconds on Clock.monotonic().
A PUT is hedged if it takes longer than the p95 of the last PUTs of its size class. There is no hedge while S3 throttles
and while all places for uploads are taken: more requests would make both worse. Files above 4 MiB are not hedged: their
time is mostly transfer, and a second transfer takes bandwidth from the first.
Invariant: of any first n PUTs, at most `percent` of n are hedged; of any n in a row, at most BURST more than that.
A PUT that was hedged counts with its whole duration, which is longer than the p95 at which it was hedged. So hedging
does not lower the p95, although the duration of the slower request stays unknown.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

KIB = 1024
SIZE_CLASSES = (64 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB)
"""Largest size of each class, in bytes; a larger file is in none."""
SAMPLES_MAX = 256
SAMPLES_MIN = 20
"""Fewer PUTs of a class say nothing about their p95."""
SAMPLE_AGE_S = 300.0
"""PUTs that ended longer ago do not count."""
LEAST_DELAY_S = 0.01
"""No PUT is hedged earlier: a store that answers faster has no tail worth a request."""
THROTTLED_S = 30.0
"""How long after a request to slow down there are no hedges."""
BURST = 10
"""How many hedges may be saved."""
_WHOLE = 100
"""The price of a hedge; a PUT earns the percentage."""


class HedgePolicy:
    """Policy of one process. `percent`: PUTs of flush files that may be hedged; `parallelism`: places for uploads."""

    def __init__(self, percent: int, parallelism: int, samples_min: int = SAMPLES_MIN) -> None:
        self._percent = percent
        self._parallelism = parallelism
        self._samples_min = samples_min
        self._saved = 0
        """Hundredths of hedges."""
        self._throttled_until = 0.0
        self._running = 0
        self._samples: tuple[deque[tuple[float, float]], ...] = tuple(deque(maxlen=SAMPLES_MAX) for _ in SIZE_CLASSES)
        """(when it ended, how long it took) by size class."""

    def begin(self, size: int, now: float) -> float | None:
        """A PUT of `size` bytes begins. Return after how many seconds to ask `may_hedge`; None: never."""
        self._running += 1
        number = bisect_left(SIZE_CLASSES, size)
        if number == len(SIZE_CLASSES):
            return None
        self._saved = min(self._saved + self._percent, max(BURST * _WHOLE, self._percent))
        delay = self._p95(number, now)
        return None if delay is None else max(delay, LEAST_DELAY_S)

    def may_hedge(self, now: float) -> bool:
        """Return whether a PUT that is still in progress gets a second request; True uses up a hedge."""
        if now < self._throttled_until or self._running >= self._parallelism or self._saved < _WHOLE:
            return False
        self._saved -= _WHOLE
        return True

    def throttled(self, now: float) -> None:
        """S3 asked to slow down."""
        self._throttled_until = now + THROTTLED_S

    def end(self, size: int, seconds: float | None, now: float) -> None:
        """A PUT that began ended: `seconds` is how long it took, None if it failed."""
        self._running -= 1
        number = bisect_left(SIZE_CLASSES, size)
        if seconds is not None and number < len(SIZE_CLASSES):
            self._samples[number].append((now, seconds))

    def _p95(self, number: int, now: float) -> float | None:
        samples = self._samples[number]
        while samples and samples[0][0] < now - SAMPLE_AGE_S:
            samples.popleft()
        if len(samples) < self._samples_min:
            return None
        return sorted(seconds for _, seconds in samples)[(len(samples) * 19 + 19) // 20 - 1]
