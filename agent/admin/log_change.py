"""Appending to the metadata log what a request asks for: judged on an image, appended only if the log still ends there.

Place: behind admin requests whose records have no operation of their own in the metastore.
Invariant: compare and append; a log that moved on is judged anew. An append whose answer was lost is
looked up in the log: it happened if its records stand where it would have put them, so that a removal is
not answered with "not found" by its own repetition. If the process dies here, the client asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.records import MetadataRecord, encode_record
from headrace.protocol.errors import admin_error
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, OutcomeUnknownError

PATIENCE_SECONDS = 15.0
"""For requests that say no time-out of their own."""


class Verdict(NamedTuple):
    """What became of the whole of a change; `code` is ErrorCode.none once it stands."""

    code: ErrorCode = ErrorCode.none
    message: str | None = None


@dataclass(frozen=True, slots=True)
class LogChange:
    """Appends through the metastore."""

    cluster: ClusterView
    api: ClusterApi
    clock: Clock

    async def append(self, judge: Callable[[MetadataImage], Sequence[MetadataRecord]], deadline: float) -> Verdict:
        """Append what `judge` finds missing in the newest image; `deadline` in seconds of the clock's monotonic().

        `judge` is called again for each newer image and raises nothing; its last call is the one that counts.
        """
        in_doubt: tuple[int, Sequence[MetadataRecord]] | None = None
        try:
            while True:
                image = await self.cluster.catch_up()
                if in_doubt is not None and await self._stands(*in_doubt):
                    return Verdict()
                records = judge(image)
                if not records:
                    return Verdict()
                try:
                    if await self.api.append_records(image.offset, records):
                        await self.cluster.catch_up()
                        return Verdict()
                except OutcomeUnknownError:
                    in_doubt = image.offset, records
                if self.clock.monotonic() >= deadline:
                    return Verdict(ErrorCode.request_timed_out, "the metadata log kept moving, or its answers got lost")
        except HeadraceError as error:
            return Verdict(ErrorCode(admin_error(error)), str(error))

    async def _stands(self, offset: int, records: Sequence[MetadataRecord]) -> bool:
        return await self.api.read_metadata(offset, len(records)) == [encode_record(record) for record in records]
