"""Before topics are described: is this agent's image new enough, so that no count of partitions goes back?

Place: asked by the handler of Metadata. Unmodified clients place keys by the count that they were shown last.
Invariant: once an agent has shown the count after a doubling, no agent shows the one before. A doubling is announced
first (DoubleTopicRecord), and takes place when all agents that may answer have applied the announcement
(agent/topics/counts/scaling.py). From then on they read the log's head before each answer about this topic;
without an answer from the metastore they do not describe it. An agent that holds no lease may lack the announcement, so
it catches up with the log first, for each topic; if the metastore does not answer soon, it describes what it knows:
then it can commit nothing, and clients that have seen the new count do not know this agent. An answer that took several
steps of the event loop is compared with the newest image at its end (`changed_since`): the topic may have doubled
meanwhile.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping

from headrace.agent.cluster.view import ClusterView, catch_up_briefly
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)

NONE: frozenset[uuid.UUID] = frozenset()


class NewestCounts:
    """One per agent."""

    def __init__(self, cluster: ClusterView, clock: Clock, may_be_behind: Callable[[], bool]) -> None:
        """`may_be_behind`: see Cluster.may_be_behind."""
        self._cluster, self._clock, self._may_be_behind = cluster, clock, may_be_behind
        self._seen: Mapping[uuid.UUID, TopicImage] | None = None
        self._announced = NONE

    def are_known(self) -> bool:
        """Return whether topics can be described from the image that there is."""
        return not self._doubling() and not self._may_be_behind()

    async def find(self) -> frozenset[uuid.UUID]:
        """Catch up if that is needed. Ids of the topics with an unknown count, which must not be described now."""
        if self.are_known():
            return NONE
        if not self._doubling():
            error = await catch_up_briefly(self._cluster.catch_up, self._clock)
            if error is not None:
                logger.warning("topics described without the log's head: error=%s", error)
            if not self._doubling():
                return NONE
        try:
            await self._cluster.catch_up()
        except HeadraceError as error:
            logger.warning("topics not described, as they may have doubled: error=%s", error)
            return self._doubling()
        return NONE

    async def changed_since(self, image: MetadataImage, topics: Iterable[TopicImage]) -> frozenset[uuid.UUID]:
        """Catch up if that is needed. Ids of those of the image's topics that must not be described from it any more:
        with an unknown count, or another one than in the newest image.
        """
        unknown = await self.find()
        now = self._cluster.image.topics_by_id
        if now is image.topics_by_id:
            return unknown
        pairs = ((topic, now.get(topic.topic_id, topic)) for topic in topics)
        return unknown | {
            topic.topic_id for topic, newest in pairs if newest is not topic and len(newest.listed) != len(topic.listed)
        }

    def _doubling(self) -> frozenset[uuid.UUID]:
        """Ids of the topics that may have doubled since the image; found again only when topics changed."""
        topics = self._cluster.image.topics_by_id
        if topics is not self._seen:
            self._seen = topics
            self._announced = frozenset(topic.topic_id for topic in topics.values() if topic.doubling >= 0)
        return self._announced
