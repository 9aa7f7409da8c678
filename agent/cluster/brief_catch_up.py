"""Catch up with the metadata log if the metastore answers soon, and continue with the image that there is if not.

Place: for requests that should see what was changed before them, but must also work in an outage of the metastore.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.metastore.log.image import MetadataImage
from headrace.storage.clock import Clock, within
from headrace.storage.errors import HeadraceError, UnavailableError

PATIENCE_SECONDS = 1.0


async def catch_up_briefly(catch_up: Callable[[], Awaitable[MetadataImage]], clock: Clock) -> HeadraceError | None:
    """Wait for `catch_up` for PATIENCE_SECONDS at most; the error if it failed or was not done by then."""
    try:
        await within(clock, PATIENCE_SECONDS, catch_up())
    except TimeoutError:
        return UnavailableError(f"the metastore did not answer within {PATIENCE_SECONDS:g} s")
    except HeadraceError as error:
        return error
    return None
