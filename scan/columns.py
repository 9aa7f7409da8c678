"""Turns batches into Arrow record batches with the columns of Spark's Kafka source.

Place: the last step of a scan, in Spark's tasks and in `headrace export`.
Invariant: a row per record with an offset in its slice, and no other row; control batches have none. Only the asked
columns are built. With LogAppendTime every record has its batch's time and timestampType 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.scan.errors import UnreadableFileError
from headrace.scan.options import HEADERS
from headrace.scan.read import SlicedExtent
from headrace.storage.errors import CorruptError
from headrace.storage.records.codec import RecordColumns, open_batch
from headrace.storage.records.errors import BatchTooLargeError
from headrace.storage.segment.verified import SoundBatch

ROWS = 32_768
ROW_BYTES = 16 * 1024 * 1024
"""A record batch is sent when it has so many rows or opened bytes: memory for two or three of them, here and in the
JVM."""
MAX_OPENED_BYTES = 1 << 30

TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    HEADERS: pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))),
}


def arrow_schema(columns: Iterable[str]) -> pa.Schema:
    """The schema of record batches with these columns."""
    return pa.schema([pa.field(name, TYPES[name]) for name in columns])


class _Run(NamedTuple):
    """Records of one batch: rows with the same topic, partition and timestamp type. `offsets` are the real ones."""

    place: SlicedExtent
    offsets: np.ndarray[tuple[int], np.dtype[np.int64]]
    records: RecordColumns
    timestamp_type: int
    opened_bytes: int


def record_batches(batches: Iterable[tuple[SlicedExtent, SoundBatch]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Record batches of `schema`. UnreadableFileError names a batch that cannot be opened."""
    runs: list[_Run] = []
    rows = size = 0
    for place, batch in batches:
        if batch.header.is_control:
            continue
        run = _open(place, batch)
        runs.append(run)
        rows += len(run.offsets)
        size += run.opened_bytes
        if rows >= ROWS or size >= ROW_BYTES:
            yield _record_batch(runs, schema)
            runs, rows, size = [], 0, 0
    if rows:
        yield _record_batch(runs, schema)


def _open(place: SlicedExtent, batch: SoundBatch) -> _Run:
    """The batch's records inside the slice."""
    start, end = place.slice.start, place.slice.end
    try:
        opened = open_batch(batch.data, max_opened_bytes=MAX_OPENED_BYTES)
        records = opened.columns()
    except (CorruptError, BatchTooLargeError) as error:
        text = f"batch cannot be opened: {place} batch={batch.offset}-{batch.last_offset}: {error}"
        raise UnreadableFileError(text) from error
    if batch.offset < start or batch.last_offset >= end:
        records = records.between(start, end)
    return _Run(place, records.offsets, records, int(batch.header.is_log_append_time), opened.body_bytes)


def _record_batch(runs: list[_Run], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [_BUILDERS[field.name](runs).cast(field.type, safe=False) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _repeated(value: Callable[[_Run], Any], kind: pa.DataType) -> Callable[[list[_Run]], pa.Array]:
    """A column with one value per run."""

    def build(runs: list[_Run]) -> pa.Array:
        values = pa.array([value(run) for run in runs], kind)
        return values.take(pa.array(np.repeat(np.arange(len(runs)), [len(run.offsets) for run in runs])))

    return build


def _offsets(runs: list[_Run]) -> pa.Array:
    return pa.array(np.concatenate([run.offsets for run in runs]))


def _timestamps(runs: list[_Run]) -> pa.Array:
    """A record's time can be any int64 of milliseconds: what has no microsecond is the closest time that has one."""
    millis = np.concatenate([run.records.timestamps for run in runs])
    return pa.array(np.clip(millis, -_MILLIS_MAX, _MILLIS_MAX) * 1_000, pa.timestamp("us", tz="UTC"))


def _headers(runs: list[_Run]) -> pa.Array:
    """Null where a record has none, as in Spark's Kafka source."""
    return pa.array(
        [
            [{"key": key, "value": value} for key, value in headers] if headers else None
            for run in runs
            for headers in run.records.headers
        ],
        TYPES[HEADERS],
    )


def _bytes(field: str) -> Callable[[list[_Run]], pa.Array]:
    return lambda runs: pa.array(list(chain.from_iterable(getattr(run.records, field) for run in runs)), pa.binary())


_MILLIS_MAX = np.iinfo(np.int64).max // 1_000
_BUILDERS: dict[str, Callable[[list[_Run]], pa.Array]] = {
    "key": _bytes("keys"),
    "value": _bytes("values"),
    "topic": _repeated(lambda run: run.place.topic, pa.string()),
    "partition": _repeated(lambda run: run.place.partition, pa.int32()),
    "offset": _offsets,
    "timestamp": _timestamps,
    "timestampType": _repeated(lambda run: run.timestamp_type, pa.int32()),
    HEADERS: _headers,
}
