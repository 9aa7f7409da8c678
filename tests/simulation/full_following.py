"""What an agent would know of a failover if it followed every commit shard, and what it lists.

Place: one for each process of a schedule that compares lists (agents.py); judged by check_lists.py.
Invariant: the second index gets a page with all shards at each poll of the process, of the same instant, and nothing
else: it has what the process would have had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.agent.fetch.index.index import TailIndex
from headrace.metastore.api.read import Extent, FeedPage

if TYPE_CHECKING:
    from headrace.agent.fetch.service import FetchService


class FullFollowing:
    """Of one process."""

    def __init__(self, node_id: int, shards: int) -> None:
        self.node_id = node_id
        self.index = TailIndex(shards)
        self.would_list: list[Extent] = []
        self.lists: list[Extent] = []
        """What the process itself wrote down."""
        self.index.on_forgotten = self.would_list.extend

    def watch(self, fetch: FetchService) -> None:
        """Note what the process lists from now on."""
        write = fetch._forgotten.note

        def note(extents: Sequence[Extent]) -> None:
            self.lists.extend(extents)
            write(extents)

        fetch._forgotten.note = note  # type: ignore[method-assign]
        fetch._index.on_forgotten = note

    def polled(self, page: FeedPage) -> None:
        """The process got a page, and this is the one with all shards."""
        self.index.apply(page)

    def in_life(self, *, is_current: bool) -> None:
        """The process heard of another life of the metastore."""
        self.would_list += self.index.extents()
        if is_current:
            self.index.forget_all()
