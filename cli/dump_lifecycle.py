"""The lifecycle logs of remote segments as lines, for `headrace dump-log --remote-log-metadata-decoder`.

Place: under dump_log.py.
Invariant: every record is printed, with its key; one that cannot be decoded is printed with the reason, and the
records after it follow.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping

from headrace.cli.output import write_error
from headrace.cli.record_json import plain, type_name
from headrace.cli.trail import trail_reader
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.api.segment_keys import parse_key
from headrace.metastore.api.segment_logs import SegmentLogApi
from headrace.metastore.api.segments import METADATA_PARTITIONS, PartitionMarker
from headrace.metastore.audit_trail.reader import AuditReader
from headrace.metastore.log.loading import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.segment_logs.records import LifecycleRecord, decode
from headrace.metastore.segment_logs.rendering import audit_record, log_record
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
        names = {topic_id: topic.name for topic_id, topic in (await load_image(metastore.cluster)).topics_by_id.items()}
        async with trail_reader(metastore.segment_logs, settings) as trail:
            for number in range(METADATA_PARTITIONS):
                is_first = True
                async for record in (
                    _audit(trail, names, number) if is_audit else _remote_log(metastore.segment_logs, names, number)
                ):
                    if is_first:
                        yield f"partition: {number}"
                    is_first = False
                    sizes = f"keySize: {len(record.key or b'')} valueSize: {len(record.value or b'')}"
                    about = f"| offset: {record.offset} CreateTime: {record.timestamp} {sizes} "
                    yield f"{'' if skip_record_metadata else about}{lifecycle_payload(record)}"
    finally:
        await metastore.close()


def lifecycle_payload(record: Record) -> str:
    """`key: … payload: {…}`; a tombstone's payload is null."""
    try:
        key = None if record.key is None else str(parse_key(record.key))
        return f"key: {key} payload: {'null' if record.value is None else _body(record.value)}"
    except HeadraceError as error:
        write_error(f"record not decoded: {error}")
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


async def _audit(trail: AuditReader, names: Mapping[uuid.UUID, str], number: int) -> AsyncIterator[Record]:
    async for event in trail.events(number, PAGE_ROWS):
        yield audit_record(event, names.get(event.key.topic_id, ""))


async def _remote_log(metastore: SegmentLogApi, names: Mapping[uuid.UUID, str], number: int) -> AsyncIterator[Record]:
    offset = 0
    while rows := (await metastore.read_remote_log(number, offset, PAGE_ROWS)).rows:
        for row in rows:
            topic_id = row.topic_id if isinstance(row, PartitionMarker) else row.key.topic_id
            yield log_record(row, names.get(topic_id, ""))
        offset = rows[-1].log_offset + 1
