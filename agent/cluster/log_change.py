"""Appends the records of a request to the metadata log: decided on an image, appended only if the log still ends
there.

Place: used by admin requests that have no specific operation in the metastore.
Invariant: compare and append; if the log changed, the decision is repeated. After an append with a lost response, the
log is read: the append happened if its records are at the expected offsets. Otherwise the repetition of a removal
would be answered "not found".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.api.metadata_log import MetadataRecord
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.records import encode_record
from headrace.protocol.errors import admin_error
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, OutcomeUnknownError

PATIENCE_SECONDS = 15.0
"""Limit in seconds of requests without a timeout field."""


class Verdict(NamedTuple):
    """The result of a whole change; `code` is ErrorCode.none if it was applied."""

    code: ErrorCode = ErrorCode.none
    message: str | None = None


@dataclass(frozen=True, slots=True)
class LogChange:
    """Appends through the metastore."""

    cluster: ClusterView
    api: ClusterApi
    clock: Clock

    async def append(self, judge: Callable[[MetadataImage], Sequence[MetadataRecord]], deadline: float) -> Verdict:
        """Append the records that `judge` returns for the newest image; `deadline` in seconds of the clock's
        monotonic().

        `judge` is called again for each newer image and must not raise; its last call counts.
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
                    return Verdict(
                        ErrorCode.request_timed_out, "the metadata log kept changing, or its answers were lost"
                    )
        except HeadraceError as error:
            return Verdict(ErrorCode(admin_error(error)), str(error))

    async def _stands(self, offset: int, records: Sequence[MetadataRecord]) -> bool:
        return await self.api.read_metadata(offset, len(records)) == [encode_record(record) for record in records]
