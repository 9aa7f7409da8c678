"""Creates the internal topics that streams groups miss, for the client that asks, while its heartbeat is answered.

Place: called by the handler of heartbeats in coordinator.py; agent/topics/topic_creation.py creates, as for the
client's own CreateTopics.
Invariant: the client may create all of the topics, or none is created. A topic is being created by one request at a
time, and after an error not before the error is forgotten, so that heartbeats of many members cause no storm. Errors
are bounded. A member learns of an error by a later heartbeat: none waits for topics.
Source: KIP-1071, Kafka's KafkaApis and AutoTopicCreationManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.operations import CLUSTER_NAME, AclOperation, AclResource
from headrace.agent.groups.streams.topology import InternalTopic
from headrace.protocol.request import Request
from headrace.storage.clock import Clock

logger = logging.getLogger(__name__)

ERRORS_MAX = 1_000
"""Topics of which an error is remembered, as in Kafka."""
_SHOWN = 3
"""Errors that the answer to a member names."""

CreateInternal = Callable[[Request, Sequence[InternalTopic]], Awaitable[Mapping[str, str]]]
"""Create topics for the client of a request; name -> why not, of those that were not created."""


class _Failure(NamedTuple):
    reason: str
    until: float


class InternalTopics:
    """One agent's creations in progress. For one event loop."""

    def __init__(self, clock: Clock, authorizer: Authorizer | None) -> None:
        """`authorizer`: None if ACLs are not enforced."""
        self.create: CreateInternal | None = None
        """Set when the agent is composed; without it nothing is created."""
        self._clock, self._authorizer = clock, authorizer
        self._in_progress: set[str] = set()
        self._failures: dict[str, _Failure] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, request: Request, missing: Sequence[InternalTopic], patience: float) -> str:
        """Create what is missing in the background; return what a member is to know, as the end of its status.
        `patience`: seconds for which an error is remembered.
        """
        if denied := self._denied(request, missing):
            return f"; Unauthorized to CREATE on topics {', '.join(denied)}."
        self._forget()
        wanted = [topic for topic in missing if topic.name not in self._in_progress | self._failures.keys()]
        if wanted and self.create is not None:
            self._in_progress.update(topic.name for topic in wanted)
            task = asyncio.create_task(self._run(self.create, request, wanted, patience))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        failed = [name for topic in missing if (name := topic.name) in self._failures]
        if not failed:
            return ""
        shown = ", ".join(f"{name} ({self._failures[name].reason})" for name in failed[:_SHOWN])
        more = f" and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else ""
        return f"; Creation failed: {shown}{more}."

    def _denied(self, request: Request, missing: Sequence[InternalTopic]) -> list[str]:
        """Return the topics that the client may not create."""
        if self._authorizer is None:
            return []
        access = self._authorizer.access(request.connection)
        if access.allows(AclOperation.CREATE, AclResource.CLUSTER, CLUSTER_NAME):
            return []
        require = partial(self._authorizer.require, request, AclOperation.CREATE, AclResource.TOPIC)
        return [topic.name for topic in missing if not require(topic.name)]

    def _forget(self) -> None:
        now = self._clock.monotonic()
        self._failures = {name: failure for name, failure in self._failures.items() if failure.until > now}

    async def _run(
        self, create: CreateInternal, request: Request, wanted: Sequence[InternalTopic], patience: float
    ) -> None:
        names = [topic.name for topic in wanted]
        failed: Mapping[str, str] = dict.fromkeys(names, "the request was not finished")
        try:
            failed = await create(request, wanted)
            logger.info("internal topics created: topics=%d failed=%d", len(names) - len(failed), len(failed))
        except Exception as error:
            logger.exception("internal topics not created: topics=%d", len(names))
            failed = dict.fromkeys(names, str(error))
        finally:
            self._in_progress.difference_update(names)
            until = self._clock.monotonic() + patience
            self._failures.update({name: _Failure(reason, until) for name, reason in failed.items()})
            while len(self._failures) > ERRORS_MAX:
                del self._failures[next(iter(self._failures))]

    async def close(self) -> None:
        """Stop what is in progress."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
