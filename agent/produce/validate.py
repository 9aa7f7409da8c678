"""Judging one batch by its header and its topic's rules; its records stay closed.

Place: between receive and buffer. What storage/records/check.py refuses is refused here with it.
Invariant: a batch that passes goes on byte for byte as it came, but for the time of append that
LogAppendTime topics stamp on a private copy (merge.py may join small ones later). Only topics that are
compacted have records opened, off the loop, to refuse those without a key.
If the process dies here nothing was stored.
Source: Kafka's ProduceRequest.validateRecords and LogValidator; KIP-32, KIP-98, KIP-110.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from agent.produce.pending import Refusal
from agent.protocol.errors import error_code
from metastore.log.image import MetadataImage, TopicImage
from storage.errors import CorruptError, HeadraceError
from storage.records.check import check_batch, split_batches
from storage.records.codec import decode_records
from storage.records.compression import Codec
from storage.records.errors import InvalidRecordError, UnsupportedCodecError
from storage.records.header import BatchHeader, read_header
from storage.records.patch import stamp_log_append_time

FIRST_WITH_ZSTD = 7
"""The Produce version from which a client may send zstd (KIP-110)."""
RECORDS_MAX = 1 << 28
"""Of one batch. The metastore takes no more, and would refuse the whole file for it."""
NO_TRANSACTIONS = Refusal(int(ErrorCode.invalid_txn_state), "transactions are not supported")
"""INVALID_TXN_STATE: final in every client, and blames neither the user's rights nor the network."""


@dataclass(frozen=True, slots=True)
class TopicRules:
    """What a topic's configs say about new batches."""

    max_bytes: int
    stamps_append_time: bool
    needs_keys: bool


class RuleBook:
    """Each topic's rules, read once per metadata image."""

    def __init__(self, *, message_max_bytes: int) -> None:
        self._message_max_bytes = message_max_bytes
        self._image: MetadataImage | None = None
        self._rules: dict[str, TopicRules] = {}

    def rules(self, image: MetadataImage, topic: TopicImage) -> TopicRules:
        """The topic's rules as of this image."""
        if image is not self._image:
            self._image, self._rules = image, {}
        found = self._rules.get(topic.name)
        if found is None:
            found = self._rules[topic.name] = self._read(image.topic_configs(topic.name))
        return found

    def _read(self, configs: Mapping[str, str]) -> TopicRules:
        return TopicRules(
            max_bytes=int(configs.get("max.message.bytes", self._message_max_bytes)),
            stamps_append_time=configs.get("message.timestamp.type") == "LogAppendTime",
            needs_keys="compact" in configs.get("cleanup.policy", "delete"),
        )


class Accepted(NamedTuple):
    """A batch as it will be stored, and its header."""

    data: memoryview
    header: BatchHeader


def judge(records: memoryview | None, rules: TopicRules, api_version: int, now_ms: int) -> Accepted | Refusal:
    """The one batch that `records` must be, or its own Kafka error. `now_ms` is what LogAppendTime stamps."""
    try:
        data, header = _sound_batch(records, rules, api_version)
    except HeadraceError as error:
        return Refusal(error_code(error), str(error))
    if header.is_transactional:
        return NO_TRANSACTIONS
    if rules.stamps_append_time:
        copy = bytearray(data)
        stamp_log_append_time(copy, now_ms)
        return Accepted(memoryview(copy).toreadonly(), read_header(copy))
    return Accepted(data, header)


def _sound_batch(records: memoryview | None, rules: TopicRules, api_version: int) -> Accepted:
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
    return Accepted(records, header)


async def missing_key(data: memoryview) -> Refusal | None:
    """Why the batch is refused, unless each of its records has a key.

    Opens it on another thread, for it may unpack to a lot.
    """
    try:
        await asyncio.to_thread(_check_keys, data)
    except HeadraceError as error:
        return Refusal(error_code(error), str(error))
    return None


def _check_keys(data: memoryview) -> None:
    for index, record in enumerate(decode_records(data)):
        if record.key is None:
            raise InvalidRecordError(f"compacted topics take no record without a key: record={index}")
