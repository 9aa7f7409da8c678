"""The names of all topics in order, for answers that list them.

Place: Metadata of all topics, and DescribeTopicPartitions, which has a name as cursor.
Invariant: sorted once for each set of topics, in slices: 100,000 names take 50 ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.agent.limits.work_slices import WorkSlices
from headrace.metastore.log.image import MetadataImage, TopicImage


class SortedTopics:
    """The newest order; one per handler."""

    def __init__(self) -> None:
        self._topics: Mapping[str, TopicImage] | None = None
        self._names: Sequence[str] = ()

    async def names(self, image: MetadataImage, slices: WorkSlices) -> Sequence[str]:
        """Return the names of the image's topics, ascending."""
        topics = image.topics_by_name
        if topics is self._topics:
            return self._names
        names = await slices.in_order(list(topics))
        self._topics, self._names = topics, names
        return names
