"""Waits at the start of a process for what it depends on.

Place: under open_process.py (Postgres) and shell.py (the bucket).
Invariant: only what certainly did nothing is tried again; the wait ends after initial.broker.registration.timeout.ms.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.config.settings import Settings
from headrace.storage.clock import Clock
from headrace.storage.errors import RetryableError

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = 2.0
"""The pause between two attempts."""


async def until_available(what: str, attempt: Callable[[], Awaitable[T]], settings: Settings, clock: Clock) -> T:
    """The result of `attempt`, repeated while `what` is not available. Errors as `attempt`, in the end also of that."""
    give_up_at = clock.monotonic() + settings.initial_broker_registration_timeout_ms / 1000
    while True:
        try:
            return await attempt()
        except RetryableError as error:
            if clock.monotonic() + RETRY_SECONDS >= give_up_at:
                raise
            logger.warning(
                "%s not available, trying again: seconds_left=%.0f (initial.broker.registration.timeout.ms) error=%s",
                what,
                give_up_at - clock.monotonic(),
                error,
            )
            await clock.sleep(RETRY_SECONDS)
