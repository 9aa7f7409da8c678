"""Creates topics: decided on an image, appended only if the log still ends there.

Place: under CreateTopics, and under Metadata for automatic creation.
Invariant: compare and append. If the log changed meanwhile, everything is checked again on the newer
image, so two agents never create the same name twice. A topic's id is drawn once per request: an append
with a lost response is recognised by the id.
"""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import LOG_KEPT_CHANGING, Appends
from headrace.agent.cluster.view import ClusterView
from headrace.agent.topics.topic_rules import (
    AcceptedTopic,
    Judgement,
    TopicDefaults,
    TopicRefusal,
    WantedTopic,
    judge,
)
from headrace.metastore.api.topics import TopicApi
from headrace.metastore.log.image import MetadataImage
from headrace.storage.clock import Clock
from headrace.storage.errors import OutcomeUnknownError, UnavailableError


@dataclass(frozen=True, slots=True)
class TopicCreation:
    """Creates topics through the metastore."""

    cluster: ClusterView
    api: TopicApi
    clock: Clock
    rng: random.Random
    defaults: Callable[[], TopicDefaults]
    on_limit: Callable[[str], None] = lambda _: None
    """Called with the name of a setting that refuses topics."""

    def new_topic_id(self) -> uuid.UUID:
        """A random id, as in Kafka."""
        return uuid.UUID(int=self.rng.getrandbits(128), version=4)

    async def create(
        self,
        wanted: Sequence[WantedTopic],
        *,
        deadline: float,
        validate_only: bool = False,
        is_automatic: bool = False,
    ) -> list[Judgement]:
        """One judgement per wanted topic, in order; `deadline` in seconds of the clock's monotonic().

        Created topics are in the image when this returns. A topic that could be neither created nor
        refused in time is refused with REQUEST_TIMED_OUT.
        """
        appends = Appends(self.cluster, self.clock, deadline)
        defaults = self.defaults().for_automatic_creation() if is_automatic else self.defaults()
        try:
            while True:
                image = await self.cluster.catch_up()
                judgements = judge(wanted, image, defaults)
                missing = [judged.topic for judged in judgements if _is_missing(judged, image)]
                if not missing or validate_only:
                    for limit in {judged.limit for judged in judgements if isinstance(judged, TopicRefusal)} - {""}:
                        self.on_limit(limit)
                    return judgements
                if not appends.may_go_on:
                    return self._give_up(wanted, LOG_KEPT_CHANGING)
                appends.begin()
                with contextlib.suppress(OutcomeUnknownError):  # the next image shows whether it has these ids
                    if not await self.api.create_topics(image.offset, missing):
                        await appends.came_late()
        except UnavailableError as error:
            return self._give_up(wanted, str(error))

    def _give_up(self, wanted: Sequence[WantedTopic], reason: str) -> list[Judgement]:
        image = self.cluster.image
        late = TopicRefusal(ErrorCode.request_timed_out, reason)
        return [late if _is_missing(judged, image) else judged for judged in judge(wanted, image, self.defaults())]


def _is_missing(judged: Judgement, image: MetadataImage) -> TypeGuard[AcceptedTopic]:
    return isinstance(judged, AcceptedTopic) and judged.topic.topic_id not in image.topics_by_id
