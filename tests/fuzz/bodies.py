"""Well-formed requests with random fields, for every API and version: they pass the decoder and reach the handlers.

Place: one of the sources of frames.py. Values are mostly those at which code decides: 0, -1, the extremes, names that
exist and names that cannot.
Invariant: the same seed gives the same bodies. The ordinary clients of the run use other names.
"""

from __future__ import annotations

import datetime
import io
import random
import struct
import uuid
from collections.abc import Callable
from dataclasses import Field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from headrace.protocol.api_versions import APIS
from headrace.protocol.typed import schema
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.compression import Codec

NAMES = ("", "fuzz", "fuzz-b", "a.b_c", "x" * 249, "x" * 250, ".", "é\n", "__cluster_metadata", "__consumer_offsets")
ITEMS_MAX = 3
_PRODUCE, _FIRST_PRODUCE = 0, 3
_KNOWN_ID = uuid.UUID(int=1)

Make = Callable[[random.Random], Any]


def well_formed(rng: random.Random, each: int) -> list[bytes]:
    """`each` frames without their length per API and version."""
    frames = []
    for api in APIS.values():
        for version in range(api.min_version, api.max_version + 1):
            if api.key == _PRODUCE and version < _FIRST_PRODUCE:
                continue
            for _ in range(each):
                header = struct.pack(">hhih4s", api.key, version, 7, 4, b"fuzz")
                tags = b"\0" if version >= api.first_flexible else b""
                frames.append(header + tags + _body(rng, api.key, version))
    return frames


def _body(rng: random.Random, api_key: int, version: int) -> bytes:
    cls = schema(api_key, version).request_type
    buffer = io.BytesIO()
    entity_writer(cls)(buffer, _entity(rng, cls))
    return buffer.getvalue()


def _entity(rng: random.Random, cls: Any) -> Any:
    return cls(**{each.name: _field(rng, each) for each in fields(cls)})


def _field(rng: random.Random, each: Field[Any]) -> Any:
    kafka_type, kind = each.metadata.get("kafka_type"), each.type
    if get_origin(kind) is UnionType:
        (kind,) = (member for member in get_args(kind) if member is not NoneType)
        if rng.random() < 0.2 and not ("tag" in each.metadata and each.default is not None):
            return None
    if get_origin(kind) is not tuple:
        return _value(rng, kind, kafka_type)
    item = get_args(kind)[0]
    if get_origin(item) is UnionType:
        item = get_args(item)[0]
    return tuple(_value(rng, item, kafka_type) for _ in range(rng.randint(0, ITEMS_MAX)))


def _value(rng: random.Random, kind: Any, kafka_type: str | None) -> Any:
    return _entity(rng, kind) if kafka_type is None else _MAKE[kafka_type](rng)


def _integer(bits: int, *, signed: bool = True) -> Make:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    telling = [value for value in (low, -1, 0, 0, 1, 1, 2, 3, 100, 10_000, high) if low <= value <= high]
    return lambda rng: rng.choice(telling) if rng.random() < 0.9 else rng.randint(low, high)


def _milliseconds(rng: random.Random) -> datetime.timedelta:
    often = rng.random() < 0.98  # a wait of ten seconds keeps its connection for as long
    return datetime.timedelta(milliseconds=rng.choice((-1, 0, 1, 20, 100) if often else (10_000, 2**31 - 1)))


def _time(rng: random.Random) -> datetime.datetime:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return epoch + datetime.timedelta(milliseconds=rng.choice((0, 1, 1_700_000_000_000, 4 * 10**12)))


@cache
def _batches() -> tuple[bytes, ...]:
    records = [Record(index, 1_700_000_000_000 + index, b"k", b"v" * index, [("h", b"v")]) for index in range(5)]
    return tuple(encode_batch(records, codec=codec, base_offset=0) for codec in Codec)


def _records(rng: random.Random) -> bytes:
    batch = bytearray(rng.choice(_batches()))
    if rng.random() < 0.5:
        batch[rng.randrange(len(batch))] ^= 1 << rng.randrange(8)
    return bytes(batch) if rng.random() < 0.9 else rng.randbytes(rng.randint(0, 200))


_MAKE: dict[str, Make] = {
    "bool": lambda rng: rng.random() < 0.5,
    "int8": _integer(8),
    "int16": _integer(16),
    "uint16": _integer(16, signed=False),
    "int32": _integer(32),
    "int64": _integer(64),
    "float64": lambda rng: rng.choice((0.0, -1.0, 1e308, float("inf"), float("nan"))),
    "string": lambda rng: rng.choice(NAMES),
    "bytes": lambda rng: rng.randbytes(rng.choice((0, 1, 8, 300))),
    "records": _records,
    "uuid": lambda rng: rng.choice((None, _KNOWN_ID, uuid.UUID(int=rng.getrandbits(128)))),
    "error_code": lambda rng: rng.choice(list(ErrorCode)),
    "timedelta_i32": _milliseconds,
    "timedelta_i64": _milliseconds,
    "datetime_i64": _time,
}
