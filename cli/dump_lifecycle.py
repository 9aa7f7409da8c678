"""The lifecycle logs of remote segments as lines, for `headrace dump-log --remote-log-metadata-decoder`.

Place: under dump_log.py.
Invariant: every record is printed, with its key; one that cannot be decoded is printed with the reason, and the
records after it follow.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator

from headrace.cli.record_json import plain, type_name
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.api.segments import METADATA_PARTITIONS, PartitionMarker
from headrace.metastore.lifecycle.keys import parse_key
from headrace.metastore.lifecycle.records import LifecycleRecord, decode
from headrace.metastore.lifecycle.rendering import audit_record, log_record
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.loading import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import HeadraceError
from headrace.storage.records.codec import Record

PAGE_ROWS = 1_000


async def lifecycle_lines(
    settings: Settings, *, is_audit: bool, skip_record_metadata: bool
) -> AsyncGenerator[str, None]:
    """Every partition of the topic, from its start to its end."""
    if not settings.metastore_url:
        raise ConfigError("metastore.url is not set (--metastore-url)")
    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    try:
        image = await load_image(metastore)
        for number in range(METADATA_PARTITIONS):
            offset = 0
            while records := await _page(metastore, image, number, offset, is_audit=is_audit):
                if not offset:
                    yield f"partition: {number}"
                for record in records:
                    sizes = f"keySize: {len(record.key or b'')} valueSize: {len(record.value or b'')}"
                    about = f"| offset: {record.offset} CreateTime: {record.timestamp} {sizes} "
                    yield f"{'' if skip_record_metadata else about}{lifecycle_payload(record)}"
                offset = records[-1].offset + 1
    finally:
        await metastore.close()


def lifecycle_payload(record: Record) -> str:
    """`key: … payload: {…}`; a tombstone's payload is null."""
    try:
        key = None if record.key is None else str(parse_key(record.key))
        return f"key: {key} payload: {'null' if record.value is None else _body(record.value)}"
    except HeadraceError as error:
        print(f"record not decoded: {error}", file=sys.stderr)
        return f"key: {record.key!r} payload: <not decoded: {error}>"


def _body(value: bytes) -> str:
    record, version = decode(value)
    body = {"type": type_name(type(record)), "version": version, "data": _data(record)}
    return json.dumps(body, separators=(",", ":"))


def _data(record: LifecycleRecord) -> dict[str, object]:
    """Kafka's field names; custom metadata that is JSON, as Headrace's is, is shown as such."""
    data: dict[str, object] = plain(record)
    custom = getattr(record, "custom_metadata", None)
    if custom is not None:
        try:
            data["customMetadata"] = json.loads(custom)
        except ValueError:
            return data
    return data


async def _page(
    metastore: PostgresMetastore, image: MetadataImage, number: int, offset: int, *, is_audit: bool
) -> list[Record]:
    names = {topic_id: topic.name for topic_id, topic in image.topics_by_id.items()}
    if is_audit:
        events = (await metastore.read_audit_log(number, offset, PAGE_ROWS)).rows
        return [audit_record(event, names.get(event.key.topic_id, "")) for event in events]
    rows = (await metastore.read_remote_log(number, offset, PAGE_ROWS)).rows
    ids = [row.topic_id if isinstance(row, PartitionMarker) else row.key.topic_id for row in rows]
    return [log_record(row, names.get(topic_id, "")) for row, topic_id in zip(rows, ids, strict=True)]
