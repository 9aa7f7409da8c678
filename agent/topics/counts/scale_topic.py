"""ScaleTopic (a private API key, version 0): a topic doubles or halves under unmodified clients.

Place: request fields to topic_doubling.py and topic_halving.py; asked by `headrace topics alter --double` and
`--halve`. Any agent answers it.
Invariant: an answer describes the change that is under way: a topic that halves counts merged children where one that
doubled counts boundaries.
"""

from __future__ import annotations

import logging
from collections import Counter

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import Verdict
from headrace.agent.topics.counts.topic_doubling import DoublingState, TopicDoubling, WantedDoubling
from headrace.agent.topics.counts.topic_halving import TopicHalving, is_halved
from headrace.metastore.api.topics import HalvingState
from headrace.metastore.partitions.merging import MergePhase
from headrace.metastore.partitions.splitting import BOUNDARY_QUIET_MS
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
from headrace.storage.errors import HeadraceError

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
