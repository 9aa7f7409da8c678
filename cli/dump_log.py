"""`headrace dump-log`: print the metadata log, a snapshot, segment files, or the logs of remote segments.

Place: reads only, with or without a running cluster; Kafka's kafka-dump-log.sh. `headrace segments history` reads
the audit trail from here.
Invariant of the audit trail: without a bucket the trail is read while all of it is in the metastore; else
InvalidError names the setting.
Invariant of the lifecycle logs: every record is printed, with its key; one that cannot be decoded is printed with
the reason, and the records after it follow.
Invariant: data is printed only after its checksums and framing were verified; with a decoder, each record is one
line `payload: {…}`.
Source: KIP-631, changes to kafka-dump-log; Kafka's option --remote-log-metadata-decoder.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from headrace.cli.options import INT32_MAX, INT64_MAX, STORE, add_settings, settings_from, whole
from headrace.cli.output import write, write_error
from headrace.cli.record_json import payload_line, plain, type_name
from headrace.config.addresses import shown_address
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.api.segment_logs import SegmentLogApi
from headrace.metastore.api.segment_states import parse_key
from headrace.metastore.api.segments import METADATA_PARTITIONS, PartitionMarker
from headrace.metastore.audit_trail import AuditReader
from headrace.metastore.log.snapshot import FILE_UNPACKED_MIB, decode_snapshot, load_image
from headrace.metastore.log.snapshot import MAGIC as SNAPSHOT_MAGIC
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.segment_logs.records import LifecycleRecord, decode
from headrace.metastore.segment_logs.rendering import audit_record, log_record
from headrace.storage.clock import SystemClock
from headrace.storage.errors import HeadraceError, InvalidError
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.records.codec import Record, decode_records
from headrace.storage.records.header import BatchHeader
from headrace.storage.segment.format import PartitionEntry
from headrace.storage.segment.reader import verify_segment, walk_batches


@asynccontextmanager
async def trail_reader(logs: SegmentLogApi, settings: Settings) -> AsyncIterator[AuditReader]:
    """A reader that lasts as long as the block."""
    if not settings.bucket:
        yield AuditReader(logs, None)
        return
    store = open_store(settings.bucket, StoreOptions.of(settings), clock=SystemClock(), rng=random.Random())
    try:
        yield AuditReader(logs, store)
    finally:
        await store.close()


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


Decoder = Callable[[Record], str]
PAGE_RECORDS = 1_000
DESCRIPTION = """\
Print the cluster's metadata log, a metadata snapshot, segment files, or the logs of remote segments.

  headrace dump-log --cluster-metadata-decoder --metastore-url postgresql://…
  headrace dump-log --cluster-metadata-decoder --files metadata.snapshot
  headrace dump-log --remote-log-metadata-decoder [--audit] --metastore-url postgresql://…
  headrace dump-log --files s3://logs/headrace/segments/4f/0190…,/tmp/another
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--files", metavar="FILES", help="comma-separated paths or URLs; if not given, the metadata log"
    )
    decoders = parser.add_mutually_exclusive_group()
    decoders.add_argument("--cluster-metadata-decoder", action="store_true", help="decode values as metadata records")
    decoders.add_argument(
        "--remote-log-metadata-decoder",
        action="store_true",
        help="decode values as records of remote segments; without --files, those of __remote_log_metadata",
    )
    parser.add_argument("--audit", action="store_true", help="those of __remote_log_metadata_audit")
    parser.add_argument(
        "--skip-record-metadata", action="store_true", help="do not print offsets and sizes of each record"
    )
    parser.add_argument(
        "--start-offset",
        type=whole(0, INT64_MAX),
        metavar="N",
        help="first offset of the metadata log to print (log start)",
    )
    parser.add_argument(
        "--snapshot-max-mib",
        type=whole(1, INT32_MAX),
        default=FILE_UNPACKED_MIB,
        metavar="MIB",
        help=f"memory that the records of a snapshot file may use ({FILE_UNPACKED_MIB})",
    )
    add_settings(parser, ("metastore.url", "bucket", *STORE), every=False)
    parser.set_defaults(run=run)


def _decoder(args: argparse.Namespace) -> Decoder | None:
    if args.remote_log_metadata_decoder:
        return lifecycle_payload
    return metadata_payload if args.cluster_metadata_decoder else None


def run(args: argparse.Namespace) -> int:
    """Print; 1 if a file is corrupt."""
    settings = settings_from(args)
    if not args.files and not args.cluster_metadata_decoder and not args.remote_log_metadata_decoder:
        raise ConfigError("set --files, or a decoder: --cluster-metadata-decoder, --remote-log-metadata-decoder")
    asyncio.run(_dump(args, settings))
    return 0


async def _dump(args: argparse.Namespace, settings: Settings) -> None:
    if not args.files:
        lines = (
            lifecycle_lines(settings, is_audit=args.audit, skip_record_metadata=args.skip_record_metadata)
            if args.remote_log_metadata_decoder
            else metadata_log_lines(settings, args.start_offset, skip_record_metadata=args.skip_record_metadata)
        )
        async with contextlib.aclosing(lines):
            async for line in lines:
                write(line)
        return
    for address in args.files.split(","):
        write(f"Dumping {address}")
        data = await read_address(address, settings)
        for line in file_lines(
            data,
            decoder=_decoder(args),
            skip_record_metadata=args.skip_record_metadata,
            snapshot_max_mib=args.snapshot_max_mib,
        ):
            write(line)


async def read_address(address: str, settings: Settings) -> bytes:
    """The bytes of a local file, or of an object by its URL (s3://bucket/key, file:///path)."""
    if "://" not in address:
        try:
            with open(address, "rb") as file:  # noqa: ASYNC230 -- nothing else runs on this loop
                return file.read()
        except OSError as error:
            raise InvalidError(f"cannot read: {address}: {error.strerror}") from error
    url, _, key = address.rpartition("/")
    if not urlsplit(url).netloc and urlsplit(url).scheme != "file":
        raise InvalidError(f"not the address of an object: {shown_address(address)}")
    store = open_store(url, StoreOptions.of(settings), clock=SystemClock(), rng=random.Random())
    try:
        return await store.get(key)
    finally:
        await store.close()


async def metadata_log_lines(
    settings: Settings, start_offset: int | None, *, skip_record_metadata: bool
) -> AsyncGenerator[str, None]:
    """The log from `start_offset` (None: its start) to its end, page by page; each page is printed as one batch."""
    if not settings.metastore_url:
        raise ConfigError("metastore.url is not set (--metastore-url)")
    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    try:
        offset = await metastore.cluster.metadata_log_start() if start_offset is None else start_offset
        if offset > (head := await metastore.cluster.metadata_head()):
            raise InvalidError(f"offset out of range: the metadata log ends at {head}: start_offset={offset}")
        while records := await metastore.cluster.read_metadata(offset, PAGE_RECORDS):
            for line in framed_lines(records, offset, skip_record_metadata=skip_record_metadata):
                yield line
            offset += len(records)
    finally:
        await metastore.close()


def framed_lines(records: Sequence[bytes], base_offset: int, *, skip_record_metadata: bool) -> Iterator[str]:
    """One line for the group of framed records, then one line per record."""
    size = sum(map(len, records))
    yield f"baseOffset: {base_offset} lastOffset: {base_offset + len(records) - 1} count: {len(records)} size: {size}"
    for offset, framed in enumerate(records, base_offset):
        metadata = "" if skip_record_metadata else f"| offset: {offset} keySize: -1 valueSize: {len(framed)}"
        yield f"{metadata} {_payload(framed)}"


def file_lines(
    data: bytes, *, decoder: Decoder | None, skip_record_metadata: bool, snapshot_max_mib: int = FILE_UNPACKED_MIB
) -> Iterator[str]:
    """The contents of a snapshot or a segment file. CorruptError if it is corrupt, InvalidError if it is too large."""
    if data.startswith(SNAPSHOT_MAGIC):
        end_offset, records = decode_snapshot(data, snapshot_max_mib * 1024 * 1024)
        yield f"metadata snapshot: endOffset: {end_offset} size: {len(data)}"
        yield from framed_lines(records, 0, skip_record_metadata=skip_record_metadata)
    else:
        yield from _segment_lines(data, decoder=decoder, skip_record_metadata=skip_record_metadata)


def _segment_lines(data: bytes, *, decoder: Decoder | None, skip_record_metadata: bool) -> Iterator[str]:
    """The footer, then each partition's batches and records."""
    footer = verify_segment(data)
    yield f"segment file: size: {footer.object_size} partitions: {len(footer.partitions)}"
    view = memoryview(data)
    for entry in footer.partitions:
        yield _partition_line(entry)
        run = view[entry.position : entry.position + entry.length]
        for position, header in walk_batches(run):
            yield _batch_line(header, entry.position + position)
            for record in decode_records(run[position : position + header.size]):
                yield _record_line(record, decoder=decoder, skip_record_metadata=skip_record_metadata)


def _partition_line(entry: PartitionEntry) -> str:
    return (
        f"topicId: {plain(entry.topic_id)} partition: {entry.partition_index} position: {entry.position} "
        f"size: {entry.length} batches: {entry.batch_count} records: {entry.record_count} "
        f"minTimestamp: {entry.min_timestamp} maxTimestamp: {entry.max_timestamp} "
        f"indexEntries: {len(entry.index_entries)}"
    )


def _batch_line(header: BatchHeader, position: int) -> str:
    kind = "LogAppendTime" if header.is_log_append_time else "CreateTime"
    last_offset = header.base_offset + header.last_offset_delta
    last_sequence = -1 if header.base_sequence < 0 else header.base_sequence + header.last_offset_delta
    return (
        f"baseOffset: {header.base_offset} lastOffset: {last_offset} count: {header.record_count} "
        f"baseSequence: {header.base_sequence} lastSequence: {last_sequence} producerId: {header.producer_id} "
        f"producerEpoch: {header.producer_epoch} partitionLeaderEpoch: {header.leader_epoch} "
        f"isTransactional: {str(header.is_transactional).lower()} isControl: {str(header.is_control).lower()} "
        f"deleteHorizonMs: {_optional(header.delete_horizon_ms)} "
        f"position: {position} {kind}: {header.max_timestamp} size: {header.size} magic: {header.magic} "
        f"compresscodec: {header.codec} crc: {header.crc} isvalid: true"
    )


def _optional(number: int | None) -> str:
    """Return the text as Java prints an OptionalLong."""
    return "OptionalLong.empty" if number is None else f"OptionalLong[{number}]"


def _record_line(record: Record, *, decoder: Decoder | None, skip_record_metadata: bool) -> str:
    metadata = "" if skip_record_metadata else (
        f"| offset: {record.offset} CreateTime: {record.timestamp} keySize: {_size(record.key)} "
        f"valueSize: {_size(record.value)} headerKeys: [{','.join(name for name, _ in record.headers)}]"
    )  # fmt: skip
    if decoder is not None:
        return f"{metadata} {decoder(record)}"
    return metadata or f" payload: {record.value!r}"


def metadata_payload(record: Record) -> str:
    """The value of a record of the metadata log, decoded."""
    return _payload(record.value or b"")


def _payload(framed: bytes) -> str:
    """The decoded record, or the decoding error: one damaged record must not hide the records after it."""
    try:
        return payload_line(framed)
    except HeadraceError as error:
        write_error(f"record not decoded: {error}")
        return f"payload: <not decoded: {error}>"


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)
