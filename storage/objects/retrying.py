"""Retries failed requests that are safe to retry.

Place: around hedging and measuring, so that every attempt is hedged and counted.
Invariant: every attempt sends the same bytes. A permanent refusal of the store (InvalidError) is raised at once. A
put or delete with an uncertain attempt never ends as a RetryableError, because that would say that nothing happened.
An outage writes at most LINES log lines a minute for each operation; the next one has the number of those left out.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from headrace.storage.clock import Clock
from headrace.storage.errors import (
    AlreadyExistsError,
    CorruptError,
    HeadraceError,
    OutcomeUnknownError,
    RetryableError,
    ThrottledError,
)
from headrace.storage.objects.store import ByteRange, ObjectInfo, ObjectStore, StoreDecorator
from headrace.storage.repetition import Repetitions

LINES = 3
"""Log lines per minute, for each operation and kind of error. headrace_store_requests_total counts all of them."""
BACKOFF_S = 0.05
BACKOFF_S_MAX = 2.0
THROTTLED_BACKOFF_S = 0.5
THROTTLED_BACKOFF_S_MAX = 8.0
RETRY_AFTER_S_MAX = 30.0
"""A store that asks for more is asked again after this time: its callers have their own limits."""

_TRY_AGAIN = (RetryableError, OutcomeUnknownError, CorruptError)
"""Includes CorruptError: a truncated transfer cannot be distinguished from a damaged object here."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


class RetryingStore(StoreDecorator):
    """Store that makes up to `retries` attempts after the first, each after a random pause up to a limit that doubles
    (full jitter).
    """

    def __init__(self, inner: ObjectStore, retries: int, clock: Clock, rng: random.Random) -> None:
        super().__init__(inner)
        self._retries = retries
        self._repetitions = Repetitions(lines=LINES)
        self._clock = clock
        self._rng = rng

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        """Store an object. With `if_absent`, OutcomeUnknownError if the key exists and an earlier attempt may have
        written it.

        The object may be truncated or altered: then CorruptError, or OutcomeUnknownError as above.
        """
        return await self._attempts("put", key, lambda: self._inner.put(key, body, if_absent=if_absent))

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        return await self._attempts("get", key, lambda: self._inner.get(key, byte_range))

    async def head(self, key: str) -> ObjectInfo:
        return await self._attempts("head", key, lambda: self._inner.head(key))

    async def delete_many(self, keys: Sequence[str]) -> list[str]:
        first = keys[0] if keys else ""
        return await self._attempts("delete", first, lambda: self._inner.delete_many(keys))

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """Continues after the last listed key."""
        attempt = 0
        while True:
            try:
                async for info in self._inner.list_objects(prefix, start_after=start_after):
                    yield info
                    if info.key > start_after:  # a store that begins again makes no progress
                        start_after, attempt = info.key, 0
                return
            except _TRY_AGAIN as error:
                attempt += 1
                if attempt > self._retries:
                    raise
                await self._pause("list", prefix, attempt, error)

    async def _attempts(self, operation: str, key: str, call: Callable[[], Awaitable[T]]) -> T:
        doubt: OutcomeUnknownError | CorruptError | None = None
        attempt = 0
        while True:
            try:
                return await call()
            except AlreadyExistsError as error:
                if doubt is None:
                    raise
                text = f"key exists, perhaps from an earlier attempt of this put: key={key} check=read it"
                raise OutcomeUnknownError(text) from error
            except _TRY_AGAIN as error:
                if isinstance(error, OutcomeUnknownError) or (operation == "put" and isinstance(error, CorruptError)):
                    doubt = error  # also CorruptError: a damaged object may now have the key
                attempt += 1
                if attempt > self._retries:
                    if doubt is None or doubt is error:
                        raise
                    raise doubt from error
                await self._pause(operation, key, attempt, error)

    async def _pause(self, operation: str, key: str, attempt: int, error: HeadraceError) -> None:
        seconds = pause_s(attempt, error, self._rng)
        left_out = self._repetitions.left_out((operation, type(error).__name__), self._clock.monotonic())
        if left_out is not None:
            logger.info(
                "store request failed, retrying: operation=%s key=%s attempt=%d pause_ms=%d left_out=%d error=%s",
                operation,
                key,
                attempt,
                seconds * 1000,
                left_out,
                error,
            )
        await self._clock.sleep(seconds)


def pause_s(attempt: int, error: HeadraceError, rng: random.Random) -> float:
    """The pause after failed attempt number `attempt` (from 1), in seconds; at least as long as the store asked for."""
    throttled = isinstance(error, ThrottledError)
    asked = (error.retry_after_s or 0.0) if isinstance(error, ThrottledError) else 0.0
    first, most = (THROTTLED_BACKOFF_S, THROTTLED_BACKOFF_S_MAX) if throttled else (BACKOFF_S, BACKOFF_S_MAX)
    drawn = rng.uniform(0, min(most, first * 2 ** (attempt - 1)))
    return min(asked, RETRY_AFTER_S_MAX) + drawn
