"""Requests to halve a topic: judged on an image, carried out step by step by the active controller.

Place: behind the request of `headrace topics alter --halve`; cluster/controller/partition_steps.py takes the steps.
Invariant: compare and append: if the log changed meanwhile, everything is checked again on the newer image.
A compacted topic does not halve: who reads it from the beginning later would miss the keys that are only in children.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import Verdict, change_log
from headrace.agent.cluster.view import ClusterView
from headrace.config.settings import Settings
from headrace.metastore.api.topics import Halving, HalvingState, TopicApi
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.features import PARTITION_CHANGES_FORMAT
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.partitions.changes import halve
from headrace.metastore.partitions.merging import MergeTimes
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, InvalidError

NO_SUCH_TOPIC = Verdict(ErrorCode.unknown_topic_or_partition, "topic does not exist")


def merge_times(settings: Settings) -> MergeTimes:
    """Return the times of a merge, from the settings that apply now."""
    return MergeTimes(settle_after_ms=settings.halving_settle_ms)


class TopicHalving:
    """One per agent. `settings`: as they are now."""

    def __init__(
        self,
        cluster: ClusterView,
        api: TopicApi,
        clock: Clock,
        configs: EffectiveConfigs,
        settings: Callable[[], Settings],
    ) -> None:
        self._cluster, self._api, self._clock = cluster, api, clock
        self._configs, self._settings = configs, settings

    async def begin_halving(
        self,
        topic: str,
        deadline: float,
        *,
        excluded_groups: Sequence[str] = (),
        validate_only: bool = False,
        partition_count: int = 0,
    ) -> Verdict:
        """Begin to halve the topic. `excluded_groups`: nothing waits for these.

        `deadline`: seconds of the clock's monotonic(). `partition_count`: the one to reach, 0 for half of what it has.
        """

        async def judge(image: MetadataImage, in_doubt: Halving | None) -> Halving | Verdict:
            count = self._judge_count(image, topic, partition_count, in_doubt=in_doubt is not None)
            if isinstance(count, Verdict):
                return count
            if validate_only:
                return Verdict()
            times = merge_times(self._settings())
            return Halving(image.topics_by_name[topic].topic_id, count, excluded_groups, times)

        async def begin(image: MetadataImage, halving: Halving) -> bool:
            return await self._api.begin_halving(image.offset, halving)

        try:
            return await change_log(self._cluster, self._clock, judge, begin, deadline)
        except HeadraceError as error:
            return Verdict.failed(error)

    async def cancel_halving(self, topic: str, deadline: float) -> Verdict:
        """Give it up, as long as no child is merged: a group may be too far behind."""

        async def judge(image: MetadataImage, in_doubt: uuid.UUID | None) -> uuid.UUID | Verdict:
            refusal = _why_not_cancelled(image, topic, in_doubt=in_doubt is not None)
            return refusal or image.topics_by_name[topic].topic_id

        async def cancel(image: MetadataImage, topic_id: uuid.UUID) -> bool:
            return await self._api.cancel_halving(image.offset, topic_id)

        try:
            return await change_log(self._cluster, self._clock, judge, cancel, deadline)
        except HeadraceError as error:
            return Verdict.failed(error)

    async def halving_status(self, topic: str) -> HalvingState | None:
        """Phases, lags and the groups that are behind, by child; None: the topic does not halve, or is unknown."""
        found = (await self._cluster.catch_up()).topics_by_name.get(topic)
        return None if found is None or found.halving < 0 else await self._api.halving_state(found.topic_id)

    def _judge_count(self, image: MetadataImage, name: str, count: int, *, in_doubt: bool) -> int | Verdict:
        """Return the count after the halving; `in_doubt`: whether an earlier attempt may have begun it."""
        topic = image.topics_by_name.get(name)
        if topic is None:
            return NO_SUCH_TOPIC
        if is_halved(topic, count) or (in_doubt and topic.halving >= 0):
            return Verdict()
        if image.metadata_format < PARTITION_CHANGES_FORMAT:
            message = f"topics halve from metadata.format {PARTITION_CHANGES_FORMAT} on: raise the level first"
            return Verdict(ErrorCode.unsupported_version, message)
        if "compact" in self._configs.topic_value(image, name, "cleanup.policy"):
            return Verdict(ErrorCode.invalid_request, "a compacted topic does not halve: cleanup.policy has compact")
        if any(split.boundary is None for split in topic.splits.values()):
            return Verdict(ErrorCode.invalid_partitions, "the topic doubles: it halves when that is over")
        try:
            half = halve(topic.ordered_partitions).undeleted
        except InvalidError as error:
            return Verdict(ErrorCode.invalid_partitions, str(error))
        if count not in (0, half):
            return Verdict(ErrorCode.invalid_partitions, f"the topic halves to {half} partitions, not to {count}")
        return half


def is_halved(topic: TopicImage, partition_count: int) -> bool:
    """Return whether the topic has so many partitions, or is on its way to them."""
    return partition_count in (topic.halving, topic.ordered_partitions.undeleted)


def _why_not_cancelled(image: MetadataImage, name: str, *, in_doubt: bool) -> Verdict | None:
    topic = image.topics_by_name.get(name)
    if topic is None:
        return NO_SUCH_TOPIC
    if topic.halving < 0:
        return Verdict() if in_doubt else Verdict(ErrorCode.invalid_request, "the topic does not halve")
    if any(topic.halving <= alias < 2 * topic.halving for alias in topic.aliases):
        return Verdict(ErrorCode.invalid_request, "a partition is merged into its parent already: the topic halves")
    return None
