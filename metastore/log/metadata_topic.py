"""The metadata log as topic `__cluster_metadata`: its name, its id, and its records as batches.

Place: requests that read topics (Metadata, Fetch, ListOffsets, Produce) handle this topic separately: it is rendered
from the metadata log and never stored as a topic.
Invariant: record n of the log is offset n of partition 0, with a null key and the framed record as its
value. Offsets are the log's own, so every agent renders the same bytes for them. Records with keys by which logins are
checked, or with salted passwords, are shown without them, to every reader.
Source: KIP-631, the metadata topic; KIP-595 for name and id.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

from headrace.metastore.log.image import TopicImage
from headrace.metastore.log.kip631_records import UserScramCredentialRecord
from headrace.metastore.log.own_records import UserScramKeysRecord
from headrace.metastore.log.records import FRAME_TYPE, decode_record, encode_record
from headrace.storage.records.codec import Record, encode_batch

METADATA_TOPIC = "__cluster_metadata"
METADATA_TOPIC_ID = uuid.UUID(int=1)
"""Kafka's own, the same in every cluster."""
METADATA_TOPIC_IMAGE = TopicImage(METADATA_TOPIC_ID, -1, METADATA_TOPIC, 1, 1, (0,))
"""What clients are shown; its number is no topic's, as no record made it."""
NEWEST_SNAPSHOT = -1
"""End offset with which FetchSnapshot asks for the newest snapshot."""
NO_TIMESTAMP = -1


_SECRET_HEADS = tuple(
    bytes((FRAME_TYPE, kind.record_type)) for kind in (UserScramCredentialRecord, UserScramKeysRecord)
)
"""Frame type and record type of the records with secrets; both are one byte each."""


def without_secrets(framed: bytes) -> bytes:
    """A framed record as readers see it."""
    if not framed.startswith(_SECRET_HEADS):
        return framed
    record = decode_record(framed)
    if isinstance(record, UserScramKeysRecord):
        keys = tuple(replace(held, salt=b"", stored_key=b"", server_key=b"") for held in record.keys)
        return encode_record(replace(record, keys=keys))
    assert isinstance(record, UserScramCredentialRecord)
    infos = tuple(replace(held, salt=b"", salted_password=b"") for held in record.credential_infos)
    return encode_record(replace(record, credential_infos=infos))


def render_batch(base_offset: int, records: Sequence[bytes]) -> bytes:
    """One batch of the log's framed records from `base_offset` on."""
    return encode_batch(
        [
            Record(offset, NO_TIMESTAMP, None, without_secrets(framed))
            for offset, framed in enumerate(records, base_offset)
        ],
        base_offset=base_offset,
        leader_epoch=0,
    )
