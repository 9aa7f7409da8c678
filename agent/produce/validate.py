"""Judging one batch by its header, its records, and its topic's rules.

Place: between receive and buffer. What storage/records/check.py and check_records.py refuse is refused here with it.
Invariant: a batch that passes continues byte for byte as it came, but for the time of append that
LogAppendTime topics stamp on a private copy (join.py may join small ones later). The records of every batch are
checked, as Kafka does; what a request has beyond LoopWork is checked off the loop. Only topics that are compacted,
or that refuse old records, have records opened, off the loop too.
Source: Kafka's ProduceRequest.validateRecords and LogValidator; KIP-32, KIP-98, KIP-110.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.produce.pending import Refusal
from headrace.config.config_definition import LONG_MAX
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.protocol.errors import error_code
from headrace.protocol.produce_codec import RecordError
from headrace.storage.errors import CorruptError, HeadraceError
from headrace.storage.records.check import check_batch, split_batches
from headrace.storage.records.check_records import RecordWork, check_records
from headrace.storage.records.codec import open_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.errors import BatchTooLargeError, InvalidRecordError, UnsupportedCodecError
from headrace.storage.records.header import BatchHeader, read_header, stamp_log_append_time

FIRST_WITH_ZSTD = 7
"""The Produce version from which a client may send zstd (KIP-110)."""
NO_TIMESTAMP = -1
"""The timestamp of a record without a timestamp."""
RECORDS_MAX = 1 << 28
"""Most records of one batch. The metastore takes no more, and would refuse the whole file for it."""
LOOP_WORK = RecordWork(unpacked_bytes=4 * 1024 * 1024, items=20_000)
"""What one request may have checked on the event loop: about 20 ms in total."""
_UNPACKING_ITEMS = 50
"""What it takes to begin to unpack a batch, as a number of records that take as long."""
_PACKED_BYTES_PER_ITEM = {Codec.GZIP: 2, Codec.SNAPPY: 2, Codec.LZ4: 64, Codec.ZSTD: 64}
"""Compressed bytes that may take as long as one record. A gzip member or a snappy block without content is slow:
4.6 µs for 20 bytes, 0.9 µs for 5."""
KEYLESS = "compacted topics take no record without a key"
RECORD_ERRORS_MAX = 1_000
"""Wrong records of one batch that the answer names; Kafka names all."""


JudgeTransactional = Callable[[BatchHeader], Refusal | None]
"""Why a transactional batch of this header is refused, if it is (transactional.py)."""


@dataclass(frozen=True, slots=True)
class TopicRules:
    """What a topic's configs say about new batches; times in ms."""

    max_bytes: int
    stamps_append_time: bool = False
    needs_keys: bool = False
    behind_max_ms: int = LONG_MAX
    ahead_max_ms: int = LONG_MAX
    opens_records: bool = False
    """Whether headers are not enough: they say the latest time of a batch, but neither the earliest nor keys."""
    partitioner: str = "murmur2"


class RuleBook:
    """Each topic's rules, read once per metadata image."""

    def __init__(self, configs: EffectiveConfigs) -> None:
        self._configs = configs
        self._image: MetadataImage | None = None
        self._rules: dict[str, TopicRules] = {}

    def rules(self, image: MetadataImage, topic: TopicImage) -> TopicRules:
        """The topic's rules as of this image."""
        if image is not self._image:
            self._image, self._rules = image, {}
        found = self._rules.get(topic.name)
        if found is None:
            found = self._rules[topic.name] = self._read(image, topic.name)
        return found

    def _read(self, image: MetadataImage, topic: str) -> TopicRules:
        def value(name: str) -> str:
            return self._configs.topic_value(image, topic, name)

        stamps_append_time = value("message.timestamp.type") == "LogAppendTime"
        needs_keys = "compact" in value("cleanup.policy")
        behind_max_ms = int(value("message.timestamp.before.max.ms"))
        return TopicRules(
            max_bytes=int(value("max.message.bytes")),
            stamps_append_time=stamps_append_time,
            needs_keys=needs_keys,
            behind_max_ms=behind_max_ms,
            ahead_max_ms=int(value("message.timestamp.after.max.ms")),
            opens_records=needs_keys or (behind_max_ms < LONG_MAX and not stamps_append_time),
            partitioner=value("headrace.partitioner"),
        )


class Accepted(NamedTuple):
    """A batch as it will be stored, and its header."""

    data: memoryview
    header: BatchHeader
    is_read: bool = True
    """Whether its records were checked; if not, that is still to be done, off the loop."""


class LoopWork:
    """What one request may still have checked on the event loop."""

    def __init__(self, left: RecordWork = LOOP_WORK) -> None:
        self.left = left

    def check(self, data: memoryview, header: BatchHeader) -> bool:
        """Return whether the batch's records were checked; raises what check_records raises for wrong ones."""
        unpacking = 0
        if header.codec != Codec.NONE:
            unpacking = _UNPACKING_ITEMS + len(data) // _PACKED_BYTES_PER_ITEM[Codec(header.codec)]
        left = self.left._replace(items=self.left.items - unpacking)
        if header.record_count > left.items or (unpacking and left.unpacked_bytes <= 0):
            return False
        try:
            done = check_records(data, header, left)
        except BatchTooLargeError:
            self.left = RecordWork(0, 0)  # what was done without success was work, too
            return False
        unpacked = done.unpacked_bytes if unpacking else 0
        self.left = RecordWork(left.unpacked_bytes - unpacked, left.items - done.items)
        return True


def judge(
    records: memoryview | None,
    rules: TopicRules,
    api_version: int,
    now_ms: int,
    work: LoopWork,
    transactional: JudgeTransactional,
) -> Accepted | Refusal:
    """The one batch that `records` must be, or its own Kafka error. `now_ms` is what LogAppendTime stamps."""
    try:
        data, header, is_read = _sound_batch(records, rules, api_version, work)
    except HeadraceError as error:
        return Refusal(error_code(error), str(error))
    if header.is_transactional and (refusal := transactional(header)) is not None:
        return refusal
    if rules.stamps_append_time:
        copy = bytearray(data)
        stamp_log_append_time(copy, now_ms)
        return Accepted(memoryview(copy).toreadonly(), read_header(copy), is_read)
    if header.max_timestamp - now_ms > rules.ahead_max_ms:
        return _out_of_range(header.max_timestamp, rules, now_ms)
    return Accepted(data, header, is_read)


def _sound_batch(records: memoryview | None, rules: TopicRules, api_version: int, work: LoopWork) -> Accepted:
    """Raises CorruptError or one of storage/records/errors.py."""
    if not records:
        raise InvalidRecordError("no record batch: each partition of a request needs one")
    try:
        header = check_batch(records, max_bytes=rules.max_bytes)
    except CorruptError:
        if len(split_batches(records)) > 1:
            raise InvalidRecordError("several record batches: each partition of a request takes one") from None
        raise
    if header.record_count > RECORDS_MAX:
        raise InvalidRecordError(f"too many records in a batch: records={header.record_count} max={RECORDS_MAX}")
    if api_version < FIRST_WITH_ZSTD and header.codec == Codec.ZSTD:
        raise UnsupportedCodecError(
            f"zstd needs a newer produce version: version={api_version} needed={FIRST_WITH_ZSTD}"
        )
    return Accepted(records, header, rules.opens_records or work.check(records, header))


def judge_unread(data: memoryview, header: BatchHeader) -> Refusal | None:
    """Return why a batch that `judge` let pass unread is refused, if it is. Takes time: for another thread."""
    try:
        check_records(data, header)
    except HeadraceError as error:
        return Refusal(error_code(error), str(error))
    return None


async def judge_records(data: memoryview, rules: TopicRules, now_ms: int) -> Refusal | None:
    """Return why a batch that `judge` let pass is refused for one of its records, if it is.

    Opens it on another thread, for it may unpack to a lot, and reads it record by record. What is too large to
    be opened (64 MiB, a million records) is MESSAGE_TOO_LARGE: Kafka opens all that it takes, at any cost.
    """
    try:
        return await asyncio.to_thread(_judge_records, data, rules, now_ms)
    except HeadraceError as error:
        return Refusal(error_code(error), str(error))


def _judge_records(data: memoryview, rules: TopicRules, now_ms: int) -> Refusal | None:
    """Return Kafka's answer: INVALID_TIMESTAMP if a record's time is wrong, else INVALID_RECORD; each wrong record is
    named.
    """
    errors: list[RecordError] = []
    wrong, too_far = 0, None
    for index, record in enumerate(open_batch(data)):
        if rules.needs_keys and record.key is None:
            message = KEYLESS
        elif _is_timely(record.timestamp, rules, now_ms):
            continue
        else:
            refusal = _out_of_range(record.timestamp, rules, now_ms)
            message, too_far = refusal.message, too_far or refusal
        wrong += 1
        if wrong <= RECORD_ERRORS_MAX:
            errors.append(RecordError(index, message))
    if not errors:
        return None
    keyless = Refusal(int(ErrorCode.invalid_record), f"{KEYLESS}: records={wrong} first={errors[0].batch_index}")
    return (too_far or keyless)._replace(record_errors=tuple(errors))


def _is_timely(timestamp: int, rules: TopicRules, now_ms: int) -> bool:
    if rules.stamps_append_time or timestamp == NO_TIMESTAMP:
        return True
    return -rules.behind_max_ms <= timestamp - now_ms <= rules.ahead_max_ms


def _out_of_range(timestamp: int, rules: TopicRules, now_ms: int) -> Refusal:
    """Kafka's answer to a record from too far away in time."""
    low, high = max(now_ms - rules.behind_max_ms, 0), now_ms + rules.ahead_max_ms
    message = f"timestamp is out of range: timestamp={timestamp} low={low} high={high}"
    return Refusal(int(ErrorCode.invalid_timestamp), message)
