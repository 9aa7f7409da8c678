"""Topics of an offset request: each resolved once, on one image.

Place: under commit_request.py, fetch_request.py and transactional_request.py.
Invariant: what the image lacks is unknown only after catching up with the log; when that fails, it
is unresolved, which clients take as a reason to ask again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.segment_logs.topics import RENDERED_TOPICS, rendered_topic
from headrace.storage.errors import UnavailableError

logger = logging.getLogger(__name__)

NameOrId = str | uuid.UUID
_NO_ID = uuid.UUID(int=0)


@dataclass(frozen=True, slots=True)
class ResolvedTopics:
    """The topics that exist, by what they were asked for by; `missing` is the code of all others."""

    found: dict[NameOrId, TopicImage]
    missing: ErrorCode


def name_or_id(topic: Any, *, by_id: bool) -> NameOrId:
    """Return what a topic of a request is asked for by."""
    return (topic.topic_id or _NO_ID) if by_id else topic.name


async def resolve(cluster: ClusterView, asked: Iterable[NameOrId], *, by_id: bool) -> ResolvedTopics:
    """Resolve the topics of a request, all by name or all by id."""
    wanted = set(asked)
    found = _lookup(cluster.image, wanted)
    missing = ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
    if len(found) < len(wanted):
        try:
            found = _lookup(await cluster.catch_up(), wanted)
        except UnavailableError as error:
            logger.warning("topics of an offset request not resolved: error=%s", error)
            missing = ErrorCode.coordinator_load_in_progress
    return ResolvedTopics(found, missing)


_RENDERED = {topic.topic_number: topic for topic in RENDERED_TOPICS}


def topic_by_number(image: MetadataImage, number: int) -> TopicImage | None:
    """The topic of that number, as stored keys name it; those of rendered topics are in no image."""
    return _RENDERED.get(number) or image.topics_by_number.get(number)


def _lookup(image: MetadataImage, wanted: set[NameOrId]) -> dict[NameOrId, TopicImage]:
    by_id, by_name = image.topics_by_id, image.topics_by_name
    found = {each: by_id.get(each) if isinstance(each, uuid.UUID) else by_name.get(each) for each in wanted}
    found |= {each: rendered_topic(each) for each in wanted if rendered_topic(each)}
    return {each: topic for each, topic in found.items() if topic is not None}
