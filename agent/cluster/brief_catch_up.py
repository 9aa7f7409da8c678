"""Catch up with the metadata log if the metastore answers soon, and go on with the image that there is if not.

Place: for requests that should see what was changed before them, but must also work in an outage of the metastore.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headrace.metastore.log.image import MetadataImage
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, UnavailableError

PATIENCE_SECONDS = 1.0


async def catch_up_briefly(catch_up: Callable[[], Awaitable[MetadataImage]], clock: Clock) -> HeadraceError | None:
    """Wait for `catch_up` for PATIENCE_SECONDS at most; the error if it failed or was not done by then."""
    reading = asyncio.ensure_future(catch_up())
    reading.add_done_callback(lambda done: done.cancelled() or done.exception())  # this caller may be cancelled first
    patience = asyncio.ensure_future(clock.sleep(PATIENCE_SECONDS))
    try:
        await asyncio.wait((reading, patience), return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            return UnavailableError(f"the metastore did not answer within {PATIENCE_SECONDS:g} s")
        reading.result()
    except HeadraceError as error:
        return error
    finally:
        patience.cancel()
        reading.cancel()
    return None
