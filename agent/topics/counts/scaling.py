"""Doubles or halves a topic at the request of a client that knows only the count.

Place: behind ScaleTopic (a private API key, version 0), the request of `headrace topics alter --double` and
`--halve`. Any agent answers it. What becomes of batches and readers after a doubling is in
metastore/partitions/splitting.py and groups/consumer/topics.py; the active controller takes the steps of a halving
(cluster/controller/completing_steps.py).
Invariant of a doubling: the announcement (DoubleTopicRecord) is in the log first, and the count changes when all
agents that are not fenced have applied it: so none of them shows the old count afterwards
(cluster/newest_counts.py). From the announcement on no bulk write is decided for the topic, and the count changes
when those that are decided are complete. Each step is planned from the log's head alone: after a crash in between,
the request continues when it is repeated. An announcement without a doubling costs a look at the log's head per
answer about the topic, and ends with the next change of its count; bulk writes are decided again after two minutes.
Invariant of a halving: compare and append: if the log changed meanwhile, everything is checked again on the newer
image. A compacted topic does not halve: who reads it from the beginning later would miss the keys that are only in
children.
An answer describes the change that is under way: a topic that halves counts merged children where one that doubled
counts boundaries.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import Verdict, Waits, change_log
from headrace.agent.cluster.view import ClusterView
from headrace.config.settings import Settings
from headrace.metastore.api.groups import GroupKind
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.topics import Doubling, Halving, HalvingState, ReadingGroup, TopicApi
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.features import PARTITION_CHANGES_FORMAT
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.linked_topics import NO_OTHER_COUNT, why_linked
from headrace.metastore.log.own_records import DoubleTopicRecord
from headrace.metastore.partitions.changes import Expansion, change_count, halve
from headrace.metastore.partitions.merging import MergePhase, MergeTimes
from headrace.metastore.partitions.splitting import BOUNDARY_QUIET_MS, PRODUCER_QUIET_MS
from headrace.protocol.own_requests import (
    VERSION,
    ScaleRequest,
    ScaleResponse,
    ScaleStep,
    ShownReader,
    decode_scale_request,
    encode_scale_response,
    some_groups,
)
from headrace.protocol.request import CloseConnection, Request, Response
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, InvalidError

LOOK_SECONDS = 0.1
"""Pause between looks whether the agents have applied the announcement."""


class WantedDoubling(NamedTuple):
    """`quiet_ms`: a boundary is set when no key that moved came for so long. `force`: with any readers.

    `partition_count`: the one to reach, 0 for twice what the topic has; one that has it is not doubled again.
    """

    topic: str
    force: bool = False
    quiet_ms: int = BOUNDARY_QUIET_MS
    partition_count: int = 0


class DoublingState(NamedTuple):
    """How far a topic is, and who reads it."""

    topic: TopicImage
    readers: list[ReadingGroup]

    @property
    def boundaries(self) -> int:
        """Number of boundaries that are set."""
        return sum(split.boundary is not None for split in self.topic.splits.values())


class TopicDoubling:
    """Doubles topics, one request at a time."""

    def __init__(self, cluster: ClusterView, api: Metastore, clock: Clock) -> None:
        self._cluster, self._api, self._clock = cluster, api, clock

    async def look(self, name: str) -> DoublingState | Verdict:
        """The topic's state at the log's head."""
        try:
            topic = (await self._cluster.catch_up()).topics_by_name.get(name)
            if topic is None:
                return Verdict(ErrorCode.unknown_topic_or_partition, "topic does not exist")
            return DoublingState(topic, list(await self._api.topics.topic_readers(topic.topic_id)))
        except HeadraceError as error:
            return Verdict.failed(error)

    async def double(self, wanted: WantedDoubling, deadline: float, *, validate_only: bool) -> Verdict:
        """`deadline` in seconds of the clock's monotonic()."""
        followed_to: int | None = None

        async def judge(image: MetadataImage, in_doubt: Doubling | None) -> Doubling | Verdict:
            """Return the doubling to do, or why there is none. `in_doubt`: the attempt before, with an unknown outcome;
            if the topic has the count that it would have set, it took place.
            """
            topic = image.topics_by_name.get(wanted.topic)
            attempted = None if in_doubt is None else in_doubt.change.undeleted
            if topic is not None and topic.ordered_partitions.undeleted == attempted:
                return Verdict()
            planned = plan_doubling(image, topic, wanted)
            if isinstance(planned, Verdict):
                return planned
            if not wanted.force and (refusal := why_not(await self._api.topics.topic_readers(planned.topic_id))):
                return refusal
            return Verdict() if validate_only else planned

        async def take_step(image: MetadataImage, planned: Doubling) -> bool | Waits:
            nonlocal followed_to
            count, left = planned.change.undeleted, await self._api.topics.announce_counts([planned.topic_id])
            if image.topics_by_id[planned.topic_id].doubling != count:
                announced = DoubleTopicRecord(topic_id=planned.topic_id, partition_count=count)
                followed_to = None
                appended = await self._api.cluster.append_records(image.offset, [announced])
                return Waits("agents have not heard of it yet; repeat the request", seconds=0) if appended else False
            followed_to = image.offset if followed_to is None else followed_to
            if behind := await self._api.topics.agents_behind(followed_to):
                reason = f"agents have not heard of it yet: node_ids={list(behind)}; repeat the request"
                return Waits(reason, LOOK_SECONDS)
            return unfinished_writes(left) if left else await self._api.topics.double_topic(image.offset, planned)

        try:
            return await change_log(self._cluster, self._clock, judge, take_step, deadline)
        except HeadraceError as error:
            return Verdict.failed(error)


def unfinished_writes(chunks: int) -> Waits:
    """Return why a topic does not grow yet."""
    return Waits(f"decided bulk writes are being completed first: chunks={chunks}; repeat the request", LOOK_SECONDS)


def plan_doubling(image: MetadataImage, topic: TopicImage | None, wanted: WantedDoubling) -> Doubling | Verdict:
    """The transaction, or why there is none: the topic cannot double now, or has the wanted count."""
    if topic is None:
        return Verdict(ErrorCode.unknown_topic_or_partition, "topic does not exist")
    if reason := why_linked(image, topic.name, NO_OTHER_COUNT):
        return Verdict(ErrorCode.policy_violation, reason)
    if topic.ordered_partitions.undeleted == wanted.partition_count and topic.halving < 0:
        return Verdict()
    if image.metadata_format < PARTITION_CHANGES_FORMAT:
        message = f"topics double from metadata.format {PARTITION_CHANGES_FORMAT} on: raise the level first"
        return Verdict(ErrorCode.unsupported_version, message)
    partitions = topic.ordered_partitions
    times, rest = divmod(partitions.undeleted, partitions.initial)
    if rest or times & (times - 1):
        message = (
            f"the topic doubles only from its initial count times a power of two: count={partitions.undeleted}"
            f" initial={partitions.initial}"
        )
        return Verdict(ErrorCode.invalid_partitions, message)
    if refusal := why_unfinished(topic):
        return refusal
    try:
        change = change_count(partitions, 2 * partitions.undeleted)
    except InvalidError as error:
        return Verdict(ErrorCode.invalid_partitions, str(error))
    assert isinstance(change, Expansion)
    if wanted.partition_count not in (0, change.undeleted):
        message = f"the topic doubles to {change.undeleted} partitions, not to {wanted.partition_count}"
        return Verdict(ErrorCode.invalid_partitions, message)
    return Doubling(
        topic.topic_id, partitions.initial, partitions.undeleted, change, PRODUCER_QUIET_MS, wanted.quiet_ms
    )


def why_unfinished(topic: TopicImage) -> Verdict | None:
    """The refusal of any change of the count while a doubling is under way."""
    waiting = sum(split.boundary is None for split in topic.splits.values())
    if not waiting:
        return None
    message = f"the last doubling is not over: partitions without a boundary={waiting} of {len(topic.splits)}"
    return Verdict(ErrorCode.reassignment_in_progress, message)


def why_not(readers: Sequence[ReadingGroup]) -> Verdict | None:
    """The refusal for readers that would not keep the order. Share groups never do."""
    others = [each.group_id for each in readers if each.kind not in (GroupKind.CONSUMER, GroupKind.SHARE)]
    if others:
        reason = "not in groups of the consumer protocol (KIP-848), so they read children at once"
        message = f"{reason}: {some_groups(others)}"
        return Verdict(ErrorCode.invalid_request, message)
    late = [reader.group_id for reader in readers if reader.late]
    if late:
        message = f"have not committed all that is before the boundaries of the last doubling: {some_groups(late)}"
        return Verdict(ErrorCode.invalid_request, message)
    return None


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
        """Begin to halve the topic. Return a verdict without an error once the halving is in the log.

        With `validate_only` nothing changes, and the verdict says whether the halving would be accepted.
        `deadline`: seconds of the clock's monotonic(). `partition_count`: the one to reach, 0 for half of what it has.
        `excluded_groups`: nothing waits for these.
        """

        async def judge(image: MetadataImage, in_doubt: Halving | None) -> Halving | Verdict:
            """Return what to append, or the final verdict. `in_doubt`: an earlier append with an unknown outcome."""
            count = self._judge_count(image, topic, partition_count, in_doubt=in_doubt is not None)
            if isinstance(count, Verdict):
                return count
            if validate_only:
                return Verdict()
            return Halving(
                topic_id=image.topics_by_name[topic].topic_id,
                partition_count=count,
                excluded_groups=excluded_groups,
                times=merge_times(self._settings()),
            )

        async def begin(image: MetadataImage, halving: Halving) -> bool:
            """Append the halving; False if the log has changed since this image."""
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
        if reason := why_linked(image, name, NO_OTHER_COUNT):
            return Verdict(ErrorCode.policy_violation, reason)
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


logger = logging.getLogger(__name__)


class ScaleTopic:
    """Double or halve a topic."""

    def __init__(self, doubling: TopicDoubling, halving: TopicHalving) -> None:
        self._doubling, self._halving = doubling, halving

    async def __call__(self, request: Request) -> Response:
        if request.api_version != VERSION:
            raise CloseConnection("version not served")
        asked = decode_scale_request(request.body)
        verdict = await self._verdict(asked, request.received_at + asked.timeout_ms / 1000)
        answer = _response(verdict, await self._doubling.look(asked.topic), await self._halving_state(asked.topic))
        return Response(entity=answer, write=lambda entity: [encode_scale_response(request.correlation_id, entity)])

    async def _verdict(self, asked: ScaleRequest, deadline: float) -> Verdict:
        if asked.quiet_ms < 0 or asked.partition_count < 0:
            message = f"below 0: quiet_ms={asked.quiet_ms} partition_count={asked.partition_count}"
            return Verdict(ErrorCode.invalid_request, message)
        if asked.step is ScaleStep.LOOK:
            return Verdict()
        if asked.step is ScaleStep.HALVE:
            return await self._halve(asked, deadline)
        if asked.step is ScaleStep.CANCEL:
            return await self._halving.cancel_halving(asked.topic, deadline)
        quiet_ms = asked.quiet_ms or BOUNDARY_QUIET_MS
        wanted = WantedDoubling(asked.topic, asked.force, quiet_ms, asked.partition_count)
        return await self._doubling.double(wanted, deadline, validate_only=asked.validate_only)

    async def _halve(self, asked: ScaleRequest, deadline: float) -> Verdict:
        """Groups that have offsets and no members ever are waited for, or with `force` are not."""
        state = await self._doubling.look(asked.topic)
        if isinstance(state, Verdict):
            return state
        if is_halved(state.topic, asked.partition_count):
            return Verdict()
        silent = [reader.group_id for reader in state.readers if reader.kind is None]
        if silent and not asked.force:
            message = f"have offsets, and never had members, so the halving might never end: {some_groups(silent)}"
            return Verdict(ErrorCode.invalid_request, message)
        return await self._halving.begin_halving(
            asked.topic,
            deadline,
            excluded_groups=silent,
            validate_only=asked.validate_only,
            partition_count=asked.partition_count,
        )

    async def _halving_state(self, topic: str) -> HalvingState | None:
        """None also if it cannot be read now: the rest of the answer says so."""
        try:
            return await self._halving.halving_status(topic)
        except HeadraceError as error:
            logger.warning("state of a halving not read: topic=%s error=%s", topic, error)
            return None


def _response(verdict: Verdict, state: DoublingState | Verdict, halving: HalvingState | None) -> ScaleResponse:
    if isinstance(state, Verdict):
        chosen = verdict if verdict.code is not ErrorCode.none else state
        return ScaleResponse(int(chosen.code), chosen.message)
    late = Counter(group for pair in halving.pairs for group in pair.behind) if halving is not None else None
    parents, done = len(state.topic.splits), state.boundaries
    if halving is not None:
        parents, done = len(halving.pairs), sum(pair.phase >= MergePhase.MERGED for pair in halving.pairs)
    readers = tuple(
        ShownReader(r.group_id, r.kind and r.kind.value, r.state, r.late if late is None else late[r.group_id])
        for r in state.readers
    )
    count = state.topic.ordered_partitions.undeleted
    return ScaleResponse(int(verdict.code), verdict.message, count, parents, done, readers)
