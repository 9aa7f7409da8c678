"""Halves topics: steps of the active controller (metastore/partitions/merging.py).

Place: a round of controller.py, from the request to halve (agent/admin/topic_halving.py) until the halving is settled.
Invariant: each step is planned from what the store says, and is one transaction; a controller that takes over at any
point looks again. The store checks itself what order depends on: that groups have committed a child's end,
and that times have passed. If no controller is there, pauses end by themselves.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.agent.cluster.follower import MetadataFollower
from headrace.metastore.api.halvings import HalvingPair, HalvingState, HalvingStepApi
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.partitions.changes import shown_count
from headrace.metastore.partitions.merging import MergePhase, next_phase
from headrace.storage.clock import Clock

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Pause between looks, while any topic halves."""


class HalvingSteps(NamedTuple):
    """What is due at one time; the first three are of pairs."""

    pause: Sequence[HalvingPair] = ()
    resume: Sequence[HalvingPair] = ()
    merge: Sequence[HalvingPair] = ()
    shows: bool = False
    settles: bool = False


def due_steps(state: HalvingState) -> HalvingSteps:
    """Return the due steps by the rule of merging.py. Pairs go their own ways until the lower count is shown, for
    all of them at once.
    """
    times, now_ms = state.times, state.now_ms
    if state.shown_ms is not None:
        return HalvingSteps(settles=now_ms - state.shown_ms >= times.settle_after_ms)
    due: dict[MergePhase, list[HalvingPair]] = {phase: [] for phase in MergePhase}
    for pair in state.pairs:
        phase = next_phase(pair.phase, pair.lag, now_ms - pair.since_ms, times)
        if phase is not pair.phase:
            due[phase].append(pair)
    shows = all(
        pair.phase is MergePhase.MERGED and now_ms - pair.since_ms >= times.show_after_ms for pair in state.pairs
    )
    return HalvingSteps(due[MergePhase.PAUSED], due[MergePhase.DRAINING], due[MergePhase.MERGED], shows)


class TopicHalvings:
    """One per candidate; `step` is called in each round of the active controller."""

    def __init__(self, api: HalvingStepApi, follower: MetadataFollower, clock: Clock) -> None:
        self._api, self._follower, self._clock = api, follower, clock
        self._next_look = 0.0
        self._seen: Mapping[uuid.UUID, TopicImage] | None = None
        self._halving: list[uuid.UUID] = []

    async def step(self, controller_epoch: int) -> None:
        """Take the steps that are due. FencedError for a stale epoch."""
        now = self._clock.monotonic()
        if now < self._next_look or not self._topics(self._follower.image):
            return
        self._next_look = now + LOOK_SECONDS
        for topic_id in self._topics(self._follower.image):
            state = await self._api.halving_state(topic_id)
            if state is not None:
                await self._take(controller_epoch, topic_id, due_steps(state))

    def _topics(self, image: MetadataImage) -> list[uuid.UUID]:
        """Those that halve; found again only when topics changed."""
        if image.topics_by_id is not self._seen:
            self._seen = image.topics_by_id
            self._halving = [topic_id for topic_id, topic in image.topics_by_id.items() if topic.halving >= 0]
        return self._halving

    async def _take(self, epoch: int, topic_id: uuid.UUID, due: HalvingSteps) -> None:
        """A step that the store refuses is planned again at the next look."""
        if due.resume:
            resumed = await self._api.resume_children(epoch, [pair.child_key for pair in due.resume])
            behind = sorted({group for pair in due.resume for group in pair.behind})
            logger.warning("pause undone: topic_id=%s children=%d groups_behind=%s", topic_id, resumed, behind)
        if due.pause:
            paused = await self._api.pause_children(epoch, [pair.child_key for pair in due.pause])
            logger.info("children paused: topic_id=%s children=%d", topic_id, paused)
        if due.merge:
            head = self._follower.image.offset
            merged = await self._api.merge_children(epoch, head, topic_id, due.merge)
            await self._log(f"children merged: children={len(due.merge)}", topic_id, is_done=merged)
        if due.shows:
            await self._show(epoch, topic_id)
        if due.settles:
            settled = await self._api.settle_halving(epoch, self._follower.image.offset, topic_id)
            await self._log("halving settled", topic_id, is_done=settled)

    async def _show(self, epoch: int, topic_id: uuid.UUID) -> None:
        image = self._follower.image
        topic = image.topics_by_id.get(topic_id)
        if topic is None:
            return
        before = topic.ordered_partitions
        shown = await self._api.show_halved_count(epoch, image.offset, topic_id, before.initial, shown_count(before))
        await self._log("lower partition count shown", topic_id, is_done=shown)

    async def _log(self, event: str, topic_id: uuid.UUID, *, is_done: bool) -> None:
        if is_done:
            logger.info("%s: topic_id=%s", event, topic_id)
            await self._follower.catch_up()
