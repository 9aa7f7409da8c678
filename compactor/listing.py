"""Lists the bucket's segment files, page by page.

Place: under the sweeper, the audit and the rebuild of an index.
Invariant: keys are in order, so a walk can continue after any key. Objects that are not segment files are listed
separately and never touched. A list may be stale: it says which files to check, and decides nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import NamedTuple

from headrace.storage.file_id import SEGMENTS, file_id_of
from headrace.storage.objects.store import ObjectInfo, ObjectStore

PAGE_KEYS = 1_000


class Page(NamedTuple):
    """Page of up to PAGE_KEYS objects. `foreign`: keys among them that are not those of segment files."""

    last_key: str
    files: dict[uuid.UUID, ObjectInfo]
    foreign: list[str]


async def pages(store: ObjectStore, *, start_after: str = "") -> AsyncIterator[Page]:
    """Everything below `segments/` after the key `start_after`."""
    page = Page("", {}, [])
    async for found in store.list_objects(SEGMENTS, start_after=start_after):
        try:
            page.files[file_id_of(found.key)] = found
        except ValueError:
            page.foreign.append(found.key)
        page = page._replace(last_key=found.key)
        if len(page.files) + len(page.foreign) >= PAGE_KEYS:
            yield page
            page = Page("", {}, [])
    if page.last_key:
        yield page
