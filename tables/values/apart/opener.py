"""Opens the chunks of a table by a process, and gives up the records that end it.

    chunk -> process -> opened
                     -> ended at a row: that record does not fit; the chunk again, without it

Place: in place of ChunkOpener in the worker (values/formats.py), with the same answers.
Invariant: as ChunkOpener. A chunk ends: each repetition gives up a record, and after Budget.chunk the rest of the chunk
is for the next one. After a restart this holds as well: what was given up is decided by the table's commits, and what
was not yet costs its time once more. If a process may have ended for another reason than the record, the record is
opened again, and given up if that ends a process, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from headrace.scan import errors as scan_errors
from headrace.storage import errors as storage_errors
from headrace.storage.errors import HeadraceError, UnavailableError
from headrace.tables import errors as table_errors
from headrace.tables.state import Definition, OffsetGap
from headrace.tables.values.apart.ending import EndedError
from headrace.tables.values.apart.messages import OpeningAnswer, OpeningFrame, OpeningRequest, Refused
from headrace.tables.values.apart.process import OpeningPool
from headrace.tables.values.open import Cut, OpenedChunk, Tolerance, ValueOpener, value_columns


class Budget(NamedTuple):
    """CPU seconds that opening may take. `record`: for one without a byte."""

    record: float = 5.0
    chunk: float = 20.0


BUDGET = Budget()


@dataclass(slots=True)
class ApartOpener:
    """Implements ValueOpener for a table with this schema, as pyiceberg has it in Arrow."""

    pool: OpeningPool
    registry_url: str
    definition: Definition
    schema: pa.Schema
    budget: Budget = BUDGET
    monotonic: Callable[[], float] = time.monotonic
    _suspected: set[tuple[int, int]] = field(default_factory=set)
    """Records at which a process ended once, perhaps for another reason."""

    @property
    def columns(self) -> pa.StructType:
        return value_columns(self.schema)

    def open(self, raw: pa.Table) -> OpenedChunk:
        answer, frame = self._ask(raw, wants_reasons=False)
        dead = tuple(OffsetGap(*each) for each in answer.dead)
        cuts = {partition: Cut(offset, reason) for partition, offset, reason in answer.cuts}
        rows = frame.rows.cast(self.schema) if frame.rows.num_columns else self.schema.empty_table()
        return OpenedChunk(pa.struct(list(frame.schema)), rows, dead, cuts)

    def reasons(self, raw: pa.Table) -> list[str]:
        answer, _ = self._ask(raw, wants_reasons=True)
        return list(answer.reasons)

    def tolerant(self) -> ValueOpener:
        return replace(self, definition=replace(self.definition, tolerance=Tolerance.ALL.value))

    def _ask(self, raw: pa.Table, *, wants_reasons: bool) -> tuple[OpeningAnswer, OpeningFrame]:
        """Errors as ChunkOpener."""
        ends = self.monotonic() + self.budget.chunk
        request = self._request(wants_reasons=wants_reasons)
        while True:
            refused = tuple(Refused(*place, reason) for place, reason in self.pool.known(self._topic).items())
            request = msgspec.structs.replace(request, refused=refused)
            try:
                answer, frame = self.pool.ask(request, self.schema, raw)
            except EndedError as ended:
                request = self._after(ended, raw, request, is_over=self.monotonic() > ends)
                continue
            if answer.error:
                raise _error_of(answer)
            return answer, frame

    def _request(self, *, wants_reasons: bool) -> OpeningRequest:
        definition = self.definition
        return OpeningRequest(
            definition.value_format,
            definition.value_schema,
            self.registry_url,
            definition.tolerance,
            record_seconds=self.budget.record,
            chunk_seconds=self.budget.chunk,
            wants_reasons=wants_reasons,
        )

    @property
    def _topic(self) -> str:
        """What names the topic, and how its values are opened."""
        return f"{self.definition.topic_id} {self.definition.value_format} {hash(self.definition.value_schema)}"

    def _after(self, ended: EndedError, raw: pa.Table, request: OpeningRequest, *, is_over: bool) -> OpeningRequest:
        """Return what to ask next."""
        if ended.row < 0:
            if request.batch_rows == 1:
                raise UnavailableError(f"{ended.reason}, and no record was open")
            return msgspec.structs.replace(request, batch_rows=1)
        place = raw.column("partition")[ended.row].as_py(), raw.column("offset")[ended.row].as_py()
        if ended.is_certain or place in self._suspected:
            self.pool.remember((self._topic, *place), ended.reason)
        self._suspected.add(place)
        return msgspec.structs.replace(request, rows_max=ended.row + 1) if is_over else request


def _error_of(answer: OpeningAnswer) -> HeadraceError:
    """The error that the process had. Only Headrace's come as an answer."""
    kinds = (getattr(module, answer.error, None) for module in (table_errors, scan_errors, storage_errors))
    kind: Any = next(filter(None, kinds), UnavailableError)
    found: HeadraceError = kind(answer.text)
    return found
