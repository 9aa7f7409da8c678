"""Bring back a deleted topic, or the records below the log starts of a topic, call by call.

Place: under `headrace topics restore`. agent/topics/deletions.py keeps the records of a deleted topic by the
pure functions here.
Invariant of a topic's records: pure. A restored topic has the number and id that it had, so that the keys of its
partitions are the same. Its leader epochs are higher than before the deletion: clients take what they hear of it for
newer.
Invariant: each call is bounded, and may be repeated: a lost answer, another change of the cluster or a stopped
command leaves a whole topic or none, and whole logs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.restoring import RestorableTopic, RestoreOutcome
from headrace.metastore.api.topics import TopicApi
from headrace.metastore.keys import split_partition_key
from headrace.metastore.life.numbers import epochs_of_life
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.kip631_records import TOPIC_RESOURCE, ConfigRecord, PartitionRecord, TopicRecord
from headrace.metastore.log.own_records import AliasPartitionRecord
from headrace.metastore.log.records import decode_record, encode_record
from headrace.metastore.log.snapshot import load_image, topic_records
from headrace.storage.errors import (
    AlreadyExistsError,
    CorruptError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)


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


EXTENTS_PER_CALL = 2_000
"""Put back by one call: some tenths of a second under the locks of their files."""
ATTEMPTS = 20
"""The cluster may change between a look at it and the append."""

WHY_NOT: Mapping[RestoreOutcome, str] = {
    RestoreOutcome.GONE: "it cannot be restored any more: its records are being removed, or it was restored or deleted"
    " meanwhile",
    RestoreOutcome.ANOTHER_LIFE: "it was deleted before the last promotion or restore of Postgres, and what became of"
    " its files since then is not known",
    RestoreOutcome.FILES_GONE: "some of its files are deleted already",
    RestoreOutcome.COMPACTED: "it is compacted by key: records of keys that were deleted since would come back",
    RestoreOutcome.MARKED: "the partition takes no new records, and is removed once it is empty",
}
"""Why something cannot be restored, for people."""

Progress = Callable[[str, int, int], None]
"""What is being done, how much is done, of how much (0: not known)."""


async def restore_deleted(metastore: Metastore, topic: RestorableTopic, name: str, on_progress: Progress) -> None:
    """Bring the topic back under a name.

    NotFoundError with the reason if it cannot be restored; AlreadyExistsError if a topic has the name; UnavailableError
    if the cluster kept changing. Nothing of the topic is visible then, and the command can be repeated.
    """
    revived = 0
    for _ in range(ATTEMPTS):
        revived = await _revive(metastore, topic, revived, on_progress)
        image = await load_image(metastore.cluster)
        if topic.topic_id in image.topics_by_id:
            return
        if name in image.topics_by_name:
            raise AlreadyExistsError(f"a topic of this name exists: topic={name}")
        kept = next(iter(await metastore.topics.restorable_topics(topic.topic_number)), None)
        if kept is None:
            raise NotFoundError(f"topic {topic.name}: {WHY_NOT[RestoreOutcome.GONE]}")
        records, epochs = restored_topic(kept.records, name, epochs_of_life(kept.life))
        try:
            outcome = await metastore.topics.restore_topic(image.offset, topic.topic_number, name, records, epochs)
        except OutcomeUnknownError:
            continue  # the next image shows whether it is back
        if outcome is RestoreOutcome.DONE:
            return
        if outcome in WHY_NOT:
            raise NotFoundError(f"topic {topic.name}: {WHY_NOT[outcome]}")
    raise UnavailableError("the metadata log keeps changing: repeat the command")


async def _revive(metastore: Metastore, topic: RestorableTopic, revived: int, on_progress: Progress) -> int:
    """Put all extents back; how many that were, with those before."""
    while True:
        answer = await metastore.topics.revive_topic(topic.topic_number, limit=EXTENTS_PER_CALL)
        revived += answer.extents
        on_progress("extents", revived, 0)
        if answer.outcome is RestoreOutcome.UNFINISHED:
            continue
        if answer.outcome in WHY_NOT:
            if topic.topic_id in (await load_image(metastore.cluster)).topics_by_id:
                return revived
            raise NotFoundError(f"topic {topic.name}: {WHY_NOT[answer.outcome]}")
        return revived


class RestoredPartition(NamedTuple):
    """What came back below a log start."""

    partition: int
    log_start_offset: int
    extents: int
    size_bytes: int


async def restore_removed(
    metastore: TopicApi, offsets: Mapping[int, int], on_progress: Progress
) -> list[RestoredPartition]:
    """Move log starts back towards these offsets, by partition key, as far as the records are whole.

    NotFoundError with the reason if a partition is not there any more or may not be restored; those before it are.
    """
    found = []
    for done, (key, offset) in enumerate(offsets.items()):
        extents = size = 0
        outcome = RestoreOutcome.UNFINISHED
        partition = split_partition_key(key)[1]
        while outcome is RestoreOutcome.UNFINISHED:
            answer = await metastore.restore_records(key, offset, limit=EXTENTS_PER_CALL)
            outcome = answer.outcome
            extents, size = extents + answer.extents, size + answer.size_bytes
        if outcome in WHY_NOT:
            raise NotFoundError(f"partition {partition}: {WHY_NOT[outcome]}")
        found.append(RestoredPartition(partition, answer.log_start_offset, extents, size))
        on_progress("partitions", done + 1, len(offsets))
    return found


def newest_of(topics: Sequence[RestorableTopic], name: str, topic_id: uuid.UUID | None) -> RestorableTopic:
    """Return the topic of this name that was deleted last, or the one with this id. NotFoundError if there is none."""
    found = [topic for topic in topics if topic.name == name and topic_id in (None, topic.topic_id)]
    if not found:
        raise NotFoundError(f"no deleted topic of this name can be restored: topic={name}")
    return max(found, key=lambda topic: topic.deleted_ms)
