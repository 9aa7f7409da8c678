"""Whether metastore or bucket do for this process what it needs, judged by its own probes and calls.

Place: one watch per dependency on a process's main loop; /readyz and the other agents read its state at any time,
also from another thread.
Invariant: reading the state never waits. A probe does what the process must be able to do: it writes. Reads that are
answered prove nothing (docs/decisions/0095). Other calls that have written count as a probe: a process without clients
asks little. A probe that hangs counts as a failure after PATIENCE_SECONDS and stays the
only one in progress, so a dependency that does not answer costs one connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

METASTORE, BUCKET = "metastore", "bucket"
PATIENCE_SECONDS = 2.0
"""How long a probe may take before the dependency counts as failing."""
RETRY_SECONDS = 1.0
"""Pause between probes while they fail."""


class NotReady(NamedTuple):
    """Why a role takes no work.

    `waits_for`: the dependency that must answer before that can change; empty if the role is not ready for
    another reason.
    """

    reason: str
    waits_for: str = ""


class Reported(NamedTuple):
    """What other agents said when they were asked. `is_heard`: at least one answered, or there is no other agent."""

    reached: frozenset[str]
    """The dependencies that at least one of them reaches."""
    is_heard: bool


class DependencyWatch:
    """Probes one dependency until `run` is cancelled."""

    def __init__(
        self,
        name: str,
        probe: Callable[[], Awaitable[object]],
        interval_seconds: float,
        clock: Clock,
        writes_so_far: Callable[[], int] = lambda: 0,
        refusal: Callable[[], str | None] = lambda: None,
        own_failure: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`probe` raises HeadraceError if the dependency does not work. `writes_so_far`: writes of this process that
        the dependency has completed; a probe is left out if there were any since the last look. `refusal`: why it
        answers and does not do its work, for any process. `own_failure`: why a call fails that this process cannot do
        without, also if probes are answered."""
        self._refusal = refusal
        self.refused: str | None = None
        """Why it answers and does not do its work, for any process, as of the last `look`."""
        self._own_failure = own_failure
        self.name = name
        self._probe = probe
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._writes_so_far = writes_so_far
        self._writes_seen = 0
        self._error: str | None = None
        self._answered = False
        self._asked_at: float | None = None
        self._looked_at = clock.monotonic()
        self._is_wanted = asyncio.Event()

    def failure(self) -> str | None:
        """Return why it counts as failing now; None if the last probe was answered, and before the first one."""
        asked_at = self._asked_at
        if asked_at is not None and self._clock.monotonic() - asked_at >= PATIENCE_SECONDS:
            return self._error or "no answer"
        return self._error or (self._own_failure() if self.refused is None else None)

    def look(self) -> None:
        """Note whether it refuses its work now; on the event loop."""
        self.refused = self._refusal()

    @property
    def answers(self) -> bool:
        """Whether the last probe was answered, and none hangs."""
        return self._answered and self.failure() is None

    def look_again(self) -> None:
        """Another agent asks: probe at once, unless the last look is as new as one gets."""
        if self._asked_at is None and self._clock.monotonic() - self._looked_at >= RETRY_SECONDS:
            self._is_wanted.set()

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            await self.check()
            await self._pause(self._interval_seconds if self._error is None else RETRY_SECONDS)

    async def _pause(self, seconds: float) -> None:
        """Sleep, or wake up early for `look_again`."""
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        wanted = asyncio.ensure_future(self._is_wanted.wait())
        try:
            await asyncio.wait((timer, wanted), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            wanted.cancel()
        self._is_wanted.clear()

    async def check(self) -> None:
        """One probe, for as long as it takes; none if other calls have written meanwhile."""
        self._looked_at = self._clock.monotonic()
        seen, self._writes_seen = self._writes_seen, self._writes_so_far()
        if self._writes_seen != seen:
            self._error, self._answered = None, True
            return
        self._asked_at = self._clock.monotonic()
        try:
            await self._probe()
        except HeadraceError as error:
            self._error = str(error) or type(error).__name__
        else:
            self._error, self._answered = None, True
            self._writes_seen = self._writes_so_far()
        finally:
            self._asked_at = None
