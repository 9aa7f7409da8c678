"""The bytes of a record of the metadata log: frame, type and version, then its fields.

Place: between the records (kip631_records.py, own_records.py) and the log, in Postgres and in snapshots.
Invariant: a record's bytes are `frame type, record type, version` as unsigned varints, then the
payload in Kafka's flexible encoding.
Source: KIP-631, "Record Formats" (seed kip-631-quorum-controller).
"""

from __future__ import annotations

import struct

from headrace.metastore.api.metadata_log import MetadataRecord
from headrace.metastore.log import kip631_records, own_records
from headrace.metastore.log.wire import Reader, Structure, write_uvarint
from headrace.storage.errors import CorruptError, InvalidError

FRAME_TYPE = 0
VERSION = 0
_TYPES: dict[int, tuple[type[MetadataRecord], Structure]] = {
    cls.record_type: (cls, Structure(cls))
    for module in (kip631_records, own_records)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, MetadataRecord) and cls is not MetadataRecord
}


def encode_record(record: MetadataRecord) -> bytes:
    """The framed bytes of a record. InvalidError when a value does not fit its field."""
    cls, structure = _TYPES[record.record_type]
    out = bytearray()
    for number in (FRAME_TYPE, record.record_type, VERSION):
        write_uvarint(out, number)
    try:
        structure.write(out, record)
    except struct.error as error:
        raise InvalidError(f"metadata record has a number out of range: record={cls.__name__} {error}") from error
    return bytes(out)


def decode_record(data: bytes) -> MetadataRecord:
    """The record in framed bytes.

    InvalidError for a frame, type or version that this software does not know (a newer one wrote
    it); CorruptError for bytes that are not exactly one record.
    """
    reader = Reader(data)
    frame_type, record_type, version = reader.uvarint(), reader.uvarint(), reader.uvarint()
    if frame_type != FRAME_TYPE:
        raise InvalidError(f"unknown metadata frame type: frame_type={frame_type}")
    if record_type not in _TYPES:
        raise InvalidError(f"unknown metadata record type: record_type={record_type}")
    cls, structure = _TYPES[record_type]
    if version != VERSION:
        raise InvalidError(f"unknown metadata record version: record={cls.__name__} version={version}")
    record: MetadataRecord = structure.read(reader)
    if reader.position != reader.end:
        raise CorruptError(f"metadata record has surplus bytes: record={cls.__name__} of={len(data)}")
    return record


def record_types() -> list[type[MetadataRecord]]:
    """Every type, by number."""
    return [cls for _, (cls, _) in sorted(_TYPES.items())]
