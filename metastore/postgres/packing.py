"""Rows as bytes: numpy columns into Postgres arrays, packed bytea into values.

Place: under commit, extents and feed; SQL's side is packing.sql.
Invariant: fixed width, big endian, no header; both sides change together. An array that psycopg
builds from a Python list costs forty times as much as one that numpy lays out.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from headrace.metastore.api.commit import BatchAnswer, BatchOutcome
from headrace.metastore.api.read import AbortedRange, Extent, LogStartMove
from headrace.storage.errors import CorruptError

Column = npt.NDArray[Any]

_ARRAY_HEADER = struct.Struct(">iiIii")
_EMPTY_HEADER = struct.Struct(">iiI")
_EXTENT = struct.Struct(">qqq16sqqiq")
_ANSWER = struct.Struct(">hqq")
_LOG_START = struct.Struct(">qq")
_KEY = struct.Struct(">q")
_COUNT = struct.Struct(">i")
_FIRST_OPEN = struct.Struct(">qq")
_ABORTED = struct.Struct(">qqqq")
_OUTCOMES = {int(outcome): outcome for outcome in BatchOutcome}


class PackedArray(bytes):
    """A Postgres array in its binary wire format. Cast the parameter: `%(keys)s::bigint[]`."""


class _PackedArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: PackedArray) -> bytes:
        return obj


psycopg.adapters.register_dumper(PackedArray, _PackedArrayDumper)


class _Element(NamedTuple):
    """An element type of Postgres: its OID, and its length and value in the types of numpy and struct."""

    oid: int
    layout: np.dtype[Any]
    code: str
    size: int


def _element(oid: int, code: str) -> _Element:
    size = struct.calcsize(">" + code)
    return _Element(oid, np.dtype([("length", ">i4"), ("value", f">i{size}")]), code, size)


_BOOL, _INT2, _INT4, _INT8 = _element(16, "b"), _element(21, "h"), _element(23, "i"), _element(20, "q")
_UUID_OID, _UUID_LENGTH = 2950, struct.pack(">i", 16)
_BYTEA_OID, _NULL = 17, struct.pack(">i", -1)


def pack_uuids(values: Sequence[uuid.UUID]) -> PackedArray:
    """uuid[]"""
    return _array(_UUID_OID, len(values), b"".join([_UUID_LENGTH + value.bytes for value in values]))


def pack_bodies(values: Sequence[bytes | None]) -> PackedArray:
    """bytea[], at least one; None is NULL."""
    parts = [_ARRAY_HEADER.pack(1, 1, _BYTEA_OID, len(values), 1)]
    for value in values:
        parts += (_NULL,) if value is None else (_COUNT.pack(len(value)), value)
    return PackedArray(b"".join(parts))


def _pack(values: Column | Sequence[int] | Sequence[bool], element: _Element) -> PackedArray:
    """A sequence is packed without numpy: that is faster up to about fifty values."""
    count = len(values)
    if not isinstance(values, np.ndarray):
        parts = [element.size] * (2 * count)
        parts[1::2] = values
        return _array(element.oid, count, struct.pack(">" + ("i" + element.code) * count, *parts))
    body = np.empty(count, dtype=element.layout)
    body["length"] = element.size
    body["value"] = values
    return _array(element.oid, count, body.tobytes())


pack_bools = partial(_pack, element=_BOOL)
"""boolean[]"""
pack_int2 = partial(_pack, element=_INT2)
"""smallint[]; the caller has checked the range."""
pack_int4 = partial(_pack, element=_INT4)
"""integer[]; the caller has checked the range."""
pack_int8 = partial(_pack, element=_INT8)
"""bigint[]"""


def _array(oid: int, count: int, body: bytes) -> PackedArray:
    if not count:
        return PackedArray(_EMPTY_HEADER.pack(0, 0, oid))
    return PackedArray(_ARRAY_HEADER.pack(1, 0, oid, count, 1) + body)


def unpack_extents(packed: bytes) -> list[Extent]:
    """Return what pack_extent (SQL) made, one after the other."""
    files: dict[bytes, uuid.UUID] = {}
    extents = []
    for key, base, last, file_bytes, position, length, leader_epoch, max_timestamp in _records(_EXTENT, packed):
        file_id = files.get(file_bytes)
        if file_id is None:
            file_id = files[file_bytes] = uuid.UUID(bytes=file_bytes)
        extents.append(Extent(key, base, last, file_id, position, length, leader_epoch, max_timestamp))
    return extents


def unpack_answers(packed: bytes) -> list[BatchAnswer]:
    """Return what pack_answer (SQL) made, one after the other."""
    return [
        BatchAnswer(_OUTCOMES[outcome], -1, -1, base, time)
        if outcome == BatchOutcome.OUT_OF_ORDER
        else BatchAnswer(_OUTCOMES[outcome], base, time)
        for outcome, base, time in _records(_ANSWER, packed)
    ]


def unpack_log_starts(packed: bytes) -> list[LogStartMove]:
    """int8 partition key, int8 log start offset, one after the other."""
    return [LogStartMove(*move) for move in _records(_LOG_START, packed)]


def unpack_transaction_row(packed: bytes) -> tuple[list[Extent], dict[int, int], list[AbortedRange]]:
    """A feed row of kind TRANSACTION: extents, first open offsets by partition key, aborted transactions."""
    (count,) = _COUNT.unpack_from(packed)
    opens_at = _COUNT.size + count * _EXTENT.size
    (partitions,) = _COUNT.unpack_from(packed, opens_at)
    opens_from = opens_at + _COUNT.size
    aborted_at = opens_from + partitions * _FIRST_OPEN.size
    return (
        unpack_extents(packed[_COUNT.size : opens_at]),
        dict(_records(_FIRST_OPEN, packed[opens_from:aborted_at])),
        unpack_aborted(packed[aborted_at:]),
    )


def unpack_aborted(packed: bytes) -> list[AbortedRange]:
    """Return what pack_aborted (SQL) made, one after the other."""
    return [AbortedRange(*row) for row in _records(_ABORTED, packed)]


def unpack_keys(packed: bytes) -> list[int]:
    """int8 partition keys."""
    return [key for (key,) in _records(_KEY, packed)]


def _records(layout: struct.Struct, packed: bytes) -> list[tuple[Any, ...]]:
    if len(packed) % layout.size:
        raise CorruptError(f"packed rows are cut off: size={len(packed)} row_size={layout.size}")
    return list(layout.iter_unpack(packed))
