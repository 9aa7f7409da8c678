"""Counts what the PUTs of a process come to: a bucket can answer GETs, and refuse every PUT or leave it unanswered.

Place: the outermost decorator of a process's bucket (cli/process/open_process.py), around the retries: a PUT that
failed here failed for its caller. The readiness probe asks it, and writes one small object through it when it is due.
Invariant: PUTs fail if the last one failed, and at least FAILURES_MIN in a row failed within FAILING_SECONDS or longer,
or the probe's own did. One success ends that. The probe writes at most once in PROBE_SECONDS while PUTs succeed, or
none is made, and at most once in FAILING_SECONDS while they fail, or one has had no answer for that long.
"""

from __future__ import annotations

from headrace.storage.clock import Clock
from headrace.storage.errors import AlreadyExistsError, HeadraceError, UnavailableError
from headrace.storage.objects.decorator import StoreDecorator
from headrace.storage.objects.store import ObjectInfo, ObjectStore

PROBE_KEY = "readiness-probe"
"""All processes write the same object, so that none is left behind by one that is gone."""
PROBE_SECONDS = 60.0
FAILURES_MIN = 3
FAILING_SECONDS = 5.0


class PutOutcomes(StoreDecorator):
    """For one event loop; `failure` from any thread."""

    def __init__(self, inner: ObjectStore, clock: Clock) -> None:
        super().__init__(inner)
        self._clock = clock
        self._failures = 0
        self._failed_since = 0.0
        self._error = ""
        self._probe_failed = False
        self._under_way: dict[object, float] = {}
        """When each PUT without an answer was sent, the oldest first."""
        self._settled_at = clock.monotonic()
        """When a PUT succeeded, or the probe was sent, last."""

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        sent = object()
        self._under_way[sent] = self._clock.monotonic()
        try:
            info = await self._inner.put(key, body, if_absent=if_absent)
        except AlreadyExistsError:
            self._succeeded()
            raise
        except HeadraceError as error:
            if not self._failures:
                self._failed_since = self._clock.monotonic()
            self._failures += 1
            self._error = str(error) or type(error).__name__
            raise
        finally:
            del self._under_way[sent]
        self._succeeded()
        return info

    def failure(self) -> str | None:
        """Return why PUTs count as failing; None while they succeed, or none is known to fail."""
        lasts = self._clock.monotonic() - self._failed_since >= FAILING_SECONDS
        if self._probe_failed or (self._failures >= FAILURES_MIN and lasts):
            return f"PUTs fail: {self._error}"
        return None

    async def probe(self) -> None:
        """Write PROBE_KEY if it is due. UnavailableError if PUTs fail."""
        now = self._clock.monotonic()
        oldest = next(iter(self._under_way.values()), now)
        due_after = FAILING_SECONDS if self._failures or now - oldest >= FAILING_SECONDS else PROBE_SECONDS
        if now - self._settled_at >= due_after:
            self._settled_at = now
            try:
                await self.put(PROBE_KEY, b"")
            except HeadraceError:
                self._probe_failed = True
        if (failure := self.failure()) is not None:
            raise UnavailableError(failure)

    def _succeeded(self) -> None:
        self._failures, self._probe_failed = 0, False
        self._settled_at = self._clock.monotonic()
