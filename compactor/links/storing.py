"""Store a file of a link and append it: segments started, object put, runs appended.

Place: under copying.py, for one file after another.
Invariant: nothing is in the bucket under an id that the lease did not reserve, and nothing is readable before the
metastore appended it (docs/decisions/0046). A file that fails on the way is an orphan, which the cleanup ends.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

from headrace.compactor.links.files import LEVEL, LaidOut, LinkFile
from headrace.compactor.take_over import record_lost, start_segments
from headrace.metastore.api.compaction import NewFile
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.links import LinkApi, LinkedOutcome
from headrace.metastore.api.segments import SegmentApi
from headrace.storage.errors import CorruptError, FencedError, UnavailableError
from headrace.storage.file_id import new_file_id, object_key
from headrace.storage.objects.store import ObjectStore


class AppendedFile(NamedTuple):
    """What became of a file."""

    ends: dict[int, int]
    """The new log end of each partition that was appended, by its key."""
    refused: dict[int, LinkedOutcome]
    """Why others were not."""
    lost: dict[int, int]
    """Offsets of those that were appended which the source no longer had."""
    copied_bytes: int


class LinkStore:
    """Stores files of one lease; `born_ms` reads the database's clock."""

    def __init__(
        self,
        links: LinkApi,
        segments: SegmentApi,
        store: ObjectStore,
        token: JobToken,
        rng: random.Random,
        born_ms: Callable[[], int],
    ) -> None:
        self._links, self._segments, self._store = links, segments, store
        self._token, self._rng, self._born_ms = token, rng, born_ms

    async def append(self, file: LinkFile) -> AppendedFile:
        """Store and append what the file has. Errors as the store's and LinkApi.append_linked; UnavailableError if the
        cluster's merged files have no keys yet.
        """
        lost = file.lost
        laid_out = await asyncio.to_thread(file.lay_out, self._rng)
        file_id = new_file_id(self._born_ms(), self._rng, LEVEL)
        if not await start_segments(self._segments, self._token, file_id, LEVEL, laid_out.segments):
            raise UnavailableError("links need the feature level remote.log.metadata.compaction=1")
        named = NewFile(file_id, LEVEL, len(laid_out.body), laid_out.body_bytes)
        stored = await self._store.put(object_key(file_id), laid_out.body)
        if stored.size != named.size:
            raise CorruptError(f"stored length differs: key={stored.key} sent={named.size} stored={stored.size}")
        try:
            outcomes = await self._links.append_linked(self._token, named, laid_out.runs, laid_out.producers)
        except FencedError:
            await record_lost(self._segments, self._token, named)
            raise
        return _stored(laid_out, outcomes, lost)


def _stored(file: LaidOut, outcomes: list[LinkedOutcome], lost: dict[int, int]) -> AppendedFile:
    refused: dict[int, LinkedOutcome] = {
        run.partition_key: outcome
        for run, outcome in zip(file.runs, outcomes, strict=True)
        if outcome is not LinkedOutcome.DONE
    }
    return AppendedFile(
        {key: end for key, end in file.ends.items() if key not in refused},
        refused,
        {key: count for key, count in lost.items() if key not in refused},
        sum(run.length for run in file.runs if run.partition_key not in refused),
    )
