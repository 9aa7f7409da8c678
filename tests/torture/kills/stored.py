"""Every stored record with the producer id and epoch of its batch, which consumers do not show: by raw fetches.

Place: at the end of a run with kills only. Works with any Kafka broker.
Invariant: it reads to the end of each partition, or raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.cli.client.records import fetch_batches
from headrace.protocol.client.cluster import KafkaCluster
from headrace.protocol.client.transport import ClientConfig, parse_servers
from headrace.storage.records.check import split_batches
from headrace.storage.records.codec import decode_records
from headrace.storage.records.header import read_header
from tests.torture.checker import Read

FETCH_BYTES = 4 * 1024 * 1024


class WrittenRecord(NamedTuple):
    """One record: where it is, and who wrote it under which sequence number."""

    read: Read
    producer_id: int
    epoch: int
    sequence: int


def read_stored(bootstrap: str, topic: str, ends: dict[int, int]) -> list[WrittenRecord]:
    """`ends`: partition -> high watermark. Each partition in its order."""
    found = []
    with KafkaCluster.of(ClientConfig(parse_servers(bootstrap))) as cluster:
        (described,) = cluster.metadata([topic])
        leaders = {int(each.partition_index): int(each.leader_id) for each in described.partitions}
        for partition, end in ends.items():
            position = 0
            while position < end:
                before = position
                for fetched in fetch_batches(cluster, leaders[partition], topic, {partition: position}, FETCH_BYTES):
                    records = [each for each in stored_in(partition, fetched.data) if each.read.offset >= position]
                    found += records
                    position = records[-1].read.offset + 1 if records else position
                if position == before:
                    raise RuntimeError(f"nothing after {position} in partition {partition}, which ends at {end}")
    return found


def stored_in(partition: int, data: memoryview) -> Iterator[WrittenRecord]:
    """Yield the records of whole batches. Pure."""
    for batch in split_batches(data):
        header = read_header(batch)
        for record in decode_records(batch):
            read = Read(partition, record.offset, (record.value or b"").decode())
            sequence = header.base_sequence + record.offset - header.base_offset
            yield WrittenRecord(read, header.producer_id, header.producer_epoch, sequence)
