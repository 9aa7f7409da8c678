"""Judges one batch by its header, its records, its topic's rules, its transaction.

Place: between receive and buffer. What storage/records/check.py and check_records.py refuse is refused here with it.
ProducerNames is asked once for each transactional producer. `with_moved_keys` looks in a batch for a partition that
is or was split in two for a key of its child: for topics that doubled, or that halve at this time.
Invariant: a batch that passes continues byte for byte as it came, but for the time of append that LogAppendTime
topics stamp on a private copy (upload.py may join small ones later). The records of every batch are checked, as
Kafka does; what a request has beyond LoopWork is checked off the loop. Only topics that are compacted, or that
refuse old records, have records opened, off the loop too. So have batches in which moved keys are searched: memory
and time are those of open_batch's limits, each different key is hashed once, and the first that moved ends the
search.
A producer id always belongs to the same transactional id. So the metastore is asked for it once, and a client that
may write one transactional id cannot write in the transaction of another. Everything of a transaction that may
change (the epoch, whether it is open, its partitions) is judged by the commit.
Source: Kafka's ProduceRequest.validateRecords and LogValidator; KIP-32, KIP-98, KIP-110; KIP-890 (batches of Produce
12 and later begin the transaction and add the partition themselves).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.limits.client_memory import ClientMemory, text_bytes
from headrace.agent.produce.requests import Arrival, Refusal, not_stored
from headrace.config.config_definition import LONG_MAX
from headrace.config.memory_budget import REMEMBERED_BYTES
from headrace.config.topic_configs import LOW_LATENCY_ENABLE
from headrace.metastore.api.commit import BatchTransaction, MovedKeys
from headrace.metastore.api.transactions import EPOCH_MAX, Transaction
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.linked_topics import NO_RECORDS, why_linked
from headrace.metastore.partitions.placement import moves
from headrace.protocol.errors import error_code
from headrace.protocol.produce_codec import ProduceRequest, RecordError
from headrace.storage.errors import CorruptError, HeadraceError
from headrace.storage.records.check import check_batch, split_batches
from headrace.storage.records.check_records import RecordWork, check_records
from headrace.storage.records.codec import open_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.errors import BatchTooLargeError, InvalidRecordError, UnsupportedCodecError
from headrace.storage.records.header import HEADER_BYTES, BatchHeader, read_header, stamp_log_append_time

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
"""Returns why a transactional batch with this header is refused, if it is."""


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
    low_latency: bool = False
    """Whether its small files may be inline."""
    linked: str = ""
    """Why it takes no records: it is a copy that a link keeps; empty for all other topics."""


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
            low_latency=image.has_low_latency and value(LOW_LATENCY_ENABLE).lower() == "true",
            linked=why_linked(image, topic, NO_RECORDS) or "",
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
    if rules.linked:
        return Refusal(int(ErrorCode.policy_violation), rules.linked)
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


log = logging.getLogger(__name__)

FIRST_IMPLICIT = 12
"""The version of Produce from which on batches add their partition to the transaction."""
NAMES_BYTES = REMEMBERED_BYTES["producer_names"]
"""Bytes for names of the producers that are remembered; one that was forgotten is looked up again."""
NO_TRANSACTIONS = Refusal(
    int(ErrorCode.invalid_txn_state), "transactions are not supported while transaction.version is 0"
)
"""INVALID_TXN_STATE: final in every client, and blames neither the user's rights nor the network."""
NO_NAME = Refusal(
    int(ErrorCode.transactional_id_authorization_failed), "transactional records without a transactional id"
)
NO_PRODUCER = Refusal(int(ErrorCode.invalid_record), "transactional records without a producer id")
USED_UP = Refusal(int(ErrorCode.invalid_producer_epoch), f"a producer has no epoch above {EPOCH_MAX}")
OTHER_NAME = Refusal(
    int(ErrorCode.invalid_producer_id_mapping), "the producer id is not, or not any more, that of the transactional id"
)

FindTransactions = Callable[[Sequence[str]], Awaitable[list[Transaction]]]
"""The same as TransactionApi.find_transactions."""


def judge_transactional(header: BatchHeader, transactional_id: str | None, *, is_offered: bool) -> Refusal | None:
    """Return why a transactional batch is refused for what it and its request say, if it is."""
    if not is_offered:
        return NO_TRANSACTIONS
    if transactional_id is None:
        return NO_NAME
    if header.producer_id < 0:
        return NO_PRODUCER
    return USED_UP if header.producer_epoch > EPOCH_MAX else None


def transaction_of(header: BatchHeader, api_version: int) -> BatchTransaction:
    """Return what the commit has to know of a batch that came with this version of Produce."""
    if not header.is_transactional:
        return BatchTransaction.NO_TRANSACTION
    return BatchTransaction.ANY_PARTITION if api_version >= FIRST_IMPLICIT else BatchTransaction.ADDED


class ProducerNames:
    """Map of producer ids to transactional ids, as far as this agent has looked."""

    def __init__(self, find: FindTransactions) -> None:
        self._find = find
        self._names: ClientMemory[int, str] = ClientMemory(NAMES_BYTES, lambda _, name: text_bytes(name))

    @property
    def in_use_bytes(self) -> int:
        """What is remembered."""
        return self._names.in_use_bytes

    def has_all(self, produce: ProduceRequest) -> bool:
        """Return whether all producers of the request's transactional batches are known to have the transactional id
        that it has.
        """
        return all(self._names.get(each) == produce.transactional_id for each in _producers(produce))

    async def look_up(self, transactional_id: str, producer_ids: Iterable[int]) -> Refusal | None:
        """Return why batches of these producers with this transactional id are refused, if they are."""
        unknown = [each for each in producer_ids if self._names.get(each) != transactional_id]
        if not unknown:
            return None
        try:
            found = await self._find([transactional_id])
        except HeadraceError as error:
            log.warning("cannot look up a transactional id: error=%s", error)
            return not_stored("the transactional id cannot be looked up now")
        owned = {each.producer.producer_id for each in found}
        for each in owned:
            self._names.put(each, transactional_id)
        return None if owned.issuperset(unknown) else OTHER_NAME


def _producers(produce: ProduceRequest) -> set[int]:
    """Return the producers of the transactional batches with a whole header, without judging them."""
    headers = (
        read_header(partition.records)
        for topic in produce.topics
        for partition in topic.partitions
        if partition.records and len(partition.records) >= HEADER_BYTES
    )
    return {header.producer_id for header in headers if header.is_transactional}


async def with_moved_keys(arrival: Arrival, partitioner: str, child: int) -> Arrival | Refusal:
    """The batch with what is known of its keys, for one without a partition count; why it is refused, if it is."""
    parent = arrival.partition_index
    try:
        found = await has_moved_key(arrival.data, partitioner, parent, child - parent)
    except HeadraceError as error:
        return Refusal(error_code(error), str(error))
    return arrival._replace(keys=MovedKeys.MOVED if found else MovedKeys.STAY)


async def has_moved_key(batch: memoryview, partitioner: str, parent: int, count: int) -> bool:
    """Return whether the batch has one. `count`: the topic's before it doubled.

    CorruptError or BatchTooLargeError if the records cannot be read: such a batch is refused, as in compacted topics.
    """
    return await asyncio.to_thread(find_moved_key, batch, partitioner, parent, count)


def find_moved_key(batch: memoryview, partitioner: str, parent: int, count: int) -> bool:
    """The same, on this thread."""
    stays: set[bytes | None] = {None}
    for record in open_batch(batch):
        if record.key in stays:
            continue
        if moves(partitioner, record.key, parent, count):
            return True
        stays.add(record.key)
    return False
