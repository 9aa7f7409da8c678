"""The cluster as the rest of the agent sees it: the interface of agent/cluster.

Place: produce, fetch, groups and admin resolve names, ids and agents here. `catch_up_briefly` is for requests that
should see what was changed before them, but must also work in an outage of the metastore: it continues with the
image that there is.
Invariant: `image` is replaced as a whole, never changed; a request takes it once and resolves each name once. An
answer that takes longer than one step of the event loop takes `routes` once, and from it the image. A name or id
that the image lacks is unknown only after `catch_up`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from headrace.agent.cluster.routing import Routes
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.storage.clock import Clock, within
from headrace.storage.errors import HeadraceError, UnavailableError


class ClusterView(Protocol):
    """The agent's membership and its image of the others."""

    @property
    def cluster_id(self) -> str:
        """base64url UUID, as Kafka prints it."""

    @property
    def commit_shards(self) -> int:
        """The count of the image; it only grows (decisions/0077)."""

    @property
    def node_id(self) -> int:
        """-1 until the agent has registered."""

    @property
    def broker_epoch(self) -> int:
        """Changes when the agent registers again; -1 until it has registered."""

    @property
    def image(self) -> MetadataImage:
        """The newest image."""

    async def catch_up(self) -> MetadataImage:
        """Follow the log to its current end (one cheap query if nothing changed)."""

    @property
    def routes(self) -> Routes:
        """The decisions for the newest image."""

    def leader(self, partition_key: int, zone: str | None = None) -> AgentImage | None:
        """The live agent for this partition's clients (rendezvous hash over its commit shard).

        With a zone, an agent of that zone if it has a live one.
        """

    def coordinator(self, group_id: str) -> AgentImage | None:
        """The live agent that coordinates this group (rendezvous hash)."""


PATIENCE_SECONDS = 1.0


async def catch_up_briefly(catch_up: Callable[[], Awaitable[MetadataImage]], clock: Clock) -> HeadraceError | None:
    """Wait for `catch_up` for PATIENCE_SECONDS at most; the error if it failed or was not done by then."""
    try:
        await within(clock, PATIENCE_SECONDS, catch_up())
    except TimeoutError:
        return UnavailableError(f"the metastore did not answer within {PATIENCE_SECONDS:g} s")
    except HeadraceError as error:
        return error
    return None
