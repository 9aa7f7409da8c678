"""The partitions that a scan reads: by topic names, by a pattern, or one by one.

Place: between the options and offsets.py; the image comes from the metadata log. Pure, but for TopicCatalog.
Invariant: an unknown topic or partition that the user named is an error; a pattern may match nothing.
Source: the options subscribe, subscribePattern and assign of Spark's Kafka source.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import re2

from headrace.metastore.api.cluster import MetadataLogApi
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.replay import ImageBuilder
from headrace.metastore.log.snapshot import load_image
from headrace.scan.errors import OptionError
from headrace.storage.errors import NotFoundError, TruncatedError


class ScanPartition(NamedTuple):
    """A partition of one incarnation of a topic."""

    topic: str
    partition: int
    key: int
    topic_id: uuid.UUID

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics with a name that this pattern matches completely."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    """Some partitions of some topics."""

    partitions: Mapping[str, tuple[int, ...]]


Selection = Subscribe | SubscribePattern | Assign


class TopicCatalog:
    """The topics of the cluster as of the last `refresh`."""

    def __init__(self, log: MetadataLogApi) -> None:
        self._log = log
        self._image: MetadataImage | None = None

    async def refresh(self) -> MetadataImage:
        """The image at the log's head. Reads only the records since the last call."""
        if self._image is not None:
            builder = ImageBuilder(self._image)
            try:
                while records := await self._log.read_metadata(builder.offset):
                    builder.add(records)
                self._image = builder.finish()
                return self._image
            except TruncatedError:
                pass
        self._image = await load_image(self._log)
        return self._image


def select(selection: Selection, image: MetadataImage) -> list[ScanPartition]:
    """The partitions in order of topic and partition. NotFoundError names a topic or partition that does not exist."""
    found: list[tuple[TopicImage, Sequence[int] | None]]
    match selection:
        case Subscribe(topics):
            found = [(_topic(image, name), None) for name in topics]
        case SubscribePattern(pattern):
            found = [(topic, None) for topic in _matching(image, pattern)]
        case Assign(partitions):
            found = [(_topic(image, name), indexes) for name, indexes in partitions.items()]
    return sorted(each for topic, indexes in found for each in _partitions(topic, indexes))


def _topic(image: MetadataImage, name: str) -> TopicImage:
    topic = image.topics_by_name.get(name)
    if topic is None:
        raise NotFoundError(f"topic does not exist: topic={name}")
    return topic


def _matching(image: MetadataImage, pattern: str) -> list[TopicImage]:
    try:
        compiled = re2.compile(pattern)
    except re2.error as error:
        raise OptionError(f"subscribePattern is not a pattern (RE2 syntax): {pattern!r}: {error}") from error
    return [topic for name, topic in image.topics_by_name.items() if compiled.fullmatch(name)]


def _partitions(topic: TopicImage, indexes: Sequence[int] | None) -> list[ScanPartition]:
    found = []
    for index in topic.indexes if indexes is None else indexes:
        key = topic.key(index)
        if key is None:
            count = topic.partition_count
            raise NotFoundError(f"partition does not exist: topic={topic.name} partition={index} partitions={count}")
        found.append(ScanPartition(topic.name, index, key, topic.topic_id))
    return found
