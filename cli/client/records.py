"""Send record batches to partition leaders, or fetch them.

Place: under `headrace records` and the console, which leave out batches of aborted transactions with read_committed.
Invariant of aborted batches: batches are asked for in the order of their offsets, with the list of the same
response.
Source: KIP-98.
Invariant: a batch is sent once: after a lost response it is unknown whether the batch is stored, and the tool says
so.
Fetched batches are decoded by the product's codec; offsets rise.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.cli.client.offsets import READ_UNCOMMITTED, TopicPartition
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import KafkaCluster, require
from headrace.storage.records.check import split_batches
from headrace.storage.records.codec import Record, decode_records, encode_batch, open_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import BatchHeader, read_header

MARKER_BYTES = 64 * 1024
"""A batch with a marker holds a record of a few bytes."""
_MARKER_KEY, _ABORT = struct.Struct(">hh"), 0
"""The key of a marker: its version, and what it says."""


class AbortedBatches:
    """The batches of one response that belong to aborted transactions, as consumers find them (KIP-98)."""

    def __init__(self, aborted: Sequence[tuple[int, int]]) -> None:
        self._starts = sorted(aborted, key=lambda one: one[1], reverse=True)
        self._producers: set[int] = set()

    def has(self, header: BatchHeader, batch: memoryview) -> bool:
        """Called for each batch in the order of offsets."""
        while self._starts and self._starts[-1][1] <= header.base_offset + header.last_offset_delta:
            self._producers.add(self._starts.pop()[0])
        if header.is_control and header.record_count:  # a cleaned log may keep the batch of a marker without it
            (marker,) = open_batch(batch, max_opened_bytes=MARKER_BYTES)
            if _MARKER_KEY.unpack(marker.key or b"")[1] == _ABORT:
                self._producers.discard(header.producer_id)
        return header.is_transactional and header.producer_id in self._producers


ALL_IN_SYNC = -1
TIMEOUT = datetime.timedelta(seconds=30)
FETCH_BYTES = 8 * 1024 * 1024
PATIENCE = datetime.timedelta(milliseconds=500)
NO_SESSION = -1


class FetchedBatches(NamedTuple):
    """A partition and its complete batches. `aborted`: of read_committed, (producer id, first offset) of each aborted
    transaction with batches among them. `throttle_s`: how long the broker's quota lets the client wait, in seconds;
    such an answer may lack batches that are there."""

    partition: int
    data: memoryview
    aborted: list[tuple[int, int]]
    throttle_s: float = 0.0


def produce(cluster: KafkaCluster, leader: int, topic: str, index: int, records: Sequence[Record], codec: Codec) -> int:
    """The offset of the first record. Errors as `require`."""
    m = cluster.message(ApiKey.PRODUCE)
    batch = encode_batch(records, codec=codec, base_offset=0)
    data = m.make(
        "TopicProduceData", name=topic, partition_data=(m.make("PartitionProduceData", index=index, records=batch),)
    )
    request = m.request(transactional_id=None, acks=ALL_IN_SYNC, timeout=TIMEOUT, topic_data=(data,))
    ((answer,),) = (topic.partition_responses for topic in cluster.ask(ApiKey.PRODUCE, request, leader).responses)
    require(answer.error_code, getattr(answer, "error_message", None), f"{topic}:{index}")
    return int(answer.base_offset)


def init_producer_id(cluster: KafkaCluster) -> tuple[int, int]:
    """A new idempotent producer: its id and epoch."""
    m = cluster.message(ApiKey.INIT_PRODUCER_ID)
    request = m.request(transactional_id=None, transaction_timeout=TIMEOUT, producer_id=-1, producer_epoch=-1)
    answer = cluster.ask(ApiKey.INIT_PRODUCER_ID, request)
    require(answer.error_code)
    return int(answer.producer_id), int(answer.producer_epoch)


def produce_again(
    cluster: KafkaCluster,
    leader: int,
    place: TopicPartition,
    records: Sequence[Record],
    codec: Codec,
    producer: tuple[int, int, int],
) -> ErrorCode:
    """Send one batch of an idempotent producer (id, epoch, first sequence): it may be repeated; the answer's code."""
    m = cluster.message(ApiKey.PRODUCE)
    producer_id, epoch, sequence = producer
    batch = encode_batch(
        [record._replace(offset=number) for number, record in enumerate(records)],
        codec=codec,
        base_offset=0,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    partition = m.make("PartitionProduceData", index=place[1], records=batch)
    data = m.make("TopicProduceData", name=place[0], partition_data=(partition,))
    request = m.request(transactional_id=None, acks=ALL_IN_SYNC, timeout=TIMEOUT, topic_data=(data,))
    ((answer,),) = (topic.partition_responses for topic in cluster.ask(ApiKey.PRODUCE, request, leader).responses)
    code: ErrorCode = answer.error_code
    return code


def fetch(
    cluster: KafkaCluster, leader: int, topic: str, positions: dict[int, int], isolation: int = READ_UNCOMMITTED
) -> Iterator[tuple[int, list[Record], int]]:
    """(partition, records from its fetch offset on, the next fetch offset) for each partition in the response.

    `positions`: partition -> fetch offset. Waits a moment if there is nothing new. With READ_COMMITTED records of
    aborted and open transactions are left out. Errors as `require`.
    """
    for found in fetch_batches(cluster, leader, topic, positions, FETCH_BYTES, isolation):
        yield found.partition, *_opened(found.data, positions[found.partition], AbortedBatches(found.aborted))


def fetch_batches(
    cluster: KafkaCluster,
    leader: int,
    topic: str,
    positions: dict[int, int],
    bytes_max: int,
    isolation: int = READ_UNCOMMITTED,
) -> Iterator[FetchedBatches]:
    """About `bytes_max` in all, or one larger batch. Errors as `require`."""
    m = cluster.message(ApiKey.FETCH)
    partitions = tuple(
        m.make(
            "FetchPartition",
            partition=index,
            current_leader_epoch=-1,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=bytes_max,
        )
        for index, offset in positions.items()
    )
    request = m.request(
        replica_id=-1,
        max_wait=PATIENCE,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=isolation,
        session_id=0,
        session_epoch=NO_SESSION,
        topics=(m.make("FetchTopic", topic=topic, partitions=partitions),),
        forgotten_topics_data=(),
        rack_id="",
    )
    answer = cluster.ask(ApiKey.FETCH, request, leader)
    require(getattr(answer, "error_code", ErrorCode.none))
    for answered in answer.responses:
        for partition in answered.partitions:
            require(partition.error_code, None, f"{topic}:{partition.partition_index}")
            aborted = [
                (int(one.producer_id), int(one.first_offset))
                for one in getattr(partition, "aborted_transactions", None) or ()
            ]
            batches = _whole_batches(memoryview(partition.records or b""))
            yield FetchedBatches(int(partition.partition_index), batches, aborted, answer.throttle_time.total_seconds())


def delete_records(cluster: KafkaCluster, leader: int, topic: str, offsets: dict[int, int]) -> dict[int, int]:
    """Delete below the offset of each partition (-1: all records); the new log start offsets."""
    m = cluster.message(ApiKey.DELETE_RECORDS)
    partitions = tuple(
        m.make("DeleteRecordsPartition", partition_index=index, offset=offset) for index, offset in offsets.items()
    )
    wanted = m.make("DeleteRecordsTopic", name=topic, partitions=partitions)
    (answer,) = cluster.ask(ApiKey.DELETE_RECORDS, m.request(topics=(wanted,), timeout=TIMEOUT), leader).topics
    for partition in answer.partitions:
        require(partition.error_code, None, f"{topic}:{partition.partition_index}")
    return {int(partition.partition_index): int(partition.low_watermark) for partition in answer.partitions}


def _opened(data: memoryview, position: int, aborted: AbortedBatches) -> tuple[list[Record], int]:
    """The records of the batches in `data`, and the next fetch offset, without control and aborted records."""
    records: list[Record] = []
    next_offset = position
    for batch in split_batches(data):
        header = read_header(batch)
        next_offset = header.base_offset + header.last_offset_delta + 1
        left_out = aborted.has(header, batch)
        if not header.is_control and not left_out:
            records += [record for record in decode_records(batch) if record.offset >= position]
    return records, next_offset


def _whole_batches(data: memoryview) -> memoryview:
    """Return all batches without the last one if it is incomplete, which brokers are allowed to send."""
    end = 0
    while end + 12 <= len(data):
        size = int.from_bytes(data[end + 8 : end + 12], "big", signed=True) + 12
        if size <= 12 or end + size > len(data):
            break
        end += size
    return data[:end]
