"""Whether metastore or bucket answer this process, judged by its own probes.

Place: one watch per dependency on a process's main loop; /readyz and the other agents read its state at any time,
also from another thread.
Invariant: reading the state never waits. Other calls that are answered count as a probe: a process without clients
asks little. A probe that hangs counts as a failure after PATIENCE_SECONDS and stays the
only one in progress, so a dependency that does not answer costs one connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

METASTORE, BUCKET = "metastore", "bucket"
PATIENCE_SECONDS = 2.0
"""How long a probe may take before the dependency counts as failing."""
RETRY_SECONDS = 1.0
"""Pause between probes while they fail."""


class DependencyWatch:
    """Probes one dependency until `run` is cancelled."""

    def __init__(
        self,
        name: str,
        probe: Callable[[], Awaitable[object]],
        interval_seconds: float,
        clock: Clock,
        answers_so_far: Callable[[], int] = lambda: 0,
    ) -> None:
        """`probe` raises HeadraceError if the dependency does not work. `answers_so_far`: calls of this process that
        the dependency answered; a probe is left out if there were any since the last look."""
        self.name = name
        self._probe = probe
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._answers_so_far = answers_so_far
        self._answers_seen = 0
        self._error: str | None = None
        self._answered = False
        self._asked_at: float | None = None

    def failure(self) -> str | None:
        """Return why it counts as failing now; None if the last probe was answered, and before the first one."""
        asked_at = self._asked_at
        if asked_at is not None and self._clock.monotonic() - asked_at >= PATIENCE_SECONDS:
            return self._error or "no answer"
        return self._error

    @property
    def answers(self) -> bool:
        """Whether the last probe was answered, and none hangs."""
        return self._answered and self.failure() is None

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            await self.check()
            await self._clock.sleep(self._interval_seconds if self._error is None else RETRY_SECONDS)

    async def check(self) -> None:
        """One probe, for as long as it takes; none if other calls were answered meanwhile."""
        seen, self._answers_seen = self._answers_seen, self._answers_so_far()
        if self._answers_seen != seen:
            self._error, self._answered = None, True
            return
        self._asked_at = self._clock.monotonic()
        try:
            await self._probe()
        except HeadraceError as error:
            self._error = str(error) or type(error).__name__
        else:
            self._error, self._answered = None, True
            self._answers_seen = self._answers_so_far()
        finally:
            self._asked_at = None
