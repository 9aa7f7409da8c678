"""The records of one topic: those that a deletion keeps, and those that bring the topic back.

Place: agent/topics/delete_topics.py keeps them; `headrace topics restore` appends them again.
Invariant: pure. A restored topic has the number and id that it had, so that the keys of its partitions are the same.
Its leader epochs are higher than before the deletion: clients take what they hear of it for newer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from headrace.metastore.api.metadata_log import MetadataRecord
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.kip631_records import TOPIC_RESOURCE, ConfigRecord, PartitionRecord, TopicRecord
from headrace.metastore.log.own_records import AliasPartitionRecord
from headrace.metastore.log.records import decode_record, encode_record
from headrace.metastore.log.snapshot import topic_records
from headrace.storage.errors import CorruptError, InvalidError


def kept_records(image: MetadataImage, topic: TopicImage) -> list[bytes]:
    """Return what a snapshot of the image says of the topic, framed; its configs last."""
    configs = image.configs.get((TOPIC_RESOURCE, topic.name), {})
    return [
        *topic_records(topic),
        *(
            encode_record(ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value))
            for name, value in configs.items()
        ),
    ]


class RestoredTopic(NamedTuple):
    """The framed records to append, and the leader epochs that they state, by partition."""

    records: list[bytes]
    epochs: dict[int, int]


def restored_topic(kept: Sequence[bytes], name: str, epochs_of_life: range) -> RestoredTopic:
    """Return the topic's records under a name, with raised leader epochs.

    `epochs_of_life`: what this life of the metastore may hand out (metastore/life/numbers.py). Epochs of partitions
    that were removed or are aliases stay, as in any change of the topic.
    CorruptError for records that are not a topic's; InvalidError if this life has no leader epochs left.
    """
    records = [decode_record(record) for record in kept]
    if not records or not isinstance(records[0], TopicRecord) or records[0].topic_number < 0:
        raise CorruptError("the kept records of a deleted topic do not begin with the topic")
    aliases = {record.partition_id for record in records if isinstance(record, AliasPartitionRecord)}
    epochs: dict[int, int] = {}

    def restored(record: MetadataRecord) -> MetadataRecord:
        if isinstance(record, TopicRecord):
            return replace(record, topic_name=name)
        if isinstance(record, ConfigRecord):
            return replace(record, resource_name=name)
        if not isinstance(record, PartitionRecord) or record.is_removed or record.partition_id in aliases:
            return record
        epoch = max(record.leader_epoch + 1, epochs_of_life.start)
        if epoch not in epochs_of_life:
            raise InvalidError(f"this life of the metastore has no leader epochs left: topic={name} epoch={epoch}")
        epochs[record.partition_id] = epoch
        return replace(record, leader_epoch=epoch)

    return RestoredTopic([encode_record(restored(record)) for record in records], epochs)
