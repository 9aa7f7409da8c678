"""Creating topics: judged on an image, appended only if the log still ends there.

Place: behind CreateTopics, and behind Metadata when a topic may be created by being named.
Invariant: compare and append. When the log moved meanwhile, everything is judged again on the newer
image, so two agents never create one name twice. A topic's id is drawn once per request: an append
whose answer was lost is recognised by it. If the process dies here, the topics exist or they do not.
"""

from __future__ import annotations

import contextlib
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from kio.schema.errors import ErrorCode

from headrace.agent.admin.topic_rules import AcceptedTopic, Judgement, TopicDefaults, TopicRefusal, WantedTopic, judge
from headrace.agent.cluster.view import ClusterView
from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.log.image import MetadataImage
from headrace.storage.clock import Clock
from headrace.storage.errors import OutcomeUnknownError, UnavailableError


@dataclass(frozen=True, slots=True)
class TopicCreation:
    """Creates topics through the metastore."""

    cluster: ClusterView
    api: ClusterApi
    clock: Clock
    rng: random.Random
    defaults: TopicDefaults

    def new_topic_id(self) -> uuid.UUID:
        """A random id, as Kafka gives topics."""
        return uuid.UUID(int=self.rng.getrandbits(128), version=4)

    async def create(
        self, wanted: Sequence[WantedTopic], *, deadline: float, validate_only: bool = False
    ) -> list[Judgement]:
        """One judgement per wanted topic, in order; `deadline` in seconds of the clock's monotonic().

        What was created is in the image when this returns. What could be neither created nor
        refused in time is refused with REQUEST_TIMED_OUT.
        """
        appended = False
        try:
            while True:
                image = await self.cluster.catch_up()
                judgements = judge(wanted, image, self.defaults)
                missing = [judged.topic for judged in judgements if _is_missing(judged, image)]
                if not missing or validate_only:
                    return judgements
                if appended and self.clock.monotonic() >= deadline:
                    return self._give_up(wanted, "the metadata log kept moving")
                appended = True
                with contextlib.suppress(OutcomeUnknownError):  # the next image has these very ids, or it has not
                    await self.api.create_topics(image.offset, missing)
        except UnavailableError as error:
            return self._give_up(wanted, str(error))

    def _give_up(self, wanted: Sequence[WantedTopic], reason: str) -> list[Judgement]:
        image = self.cluster.image
        late = TopicRefusal(ErrorCode.request_timed_out, reason)
        return [late if _is_missing(judged, image) else judged for judged in judge(wanted, image, self.defaults)]


def _is_missing(judged: Judgement, image: MetadataImage) -> TypeGuard[AcceptedTopic]:
    return isinstance(judged, AcceptedTopic) and judged.topic.topic_id not in image.topics_by_id
