"""Deliberate bugs in how readers follow the growth of commit shards: each must be caught in suites.GROWTH."""

from __future__ import annotations

from typing import Any

from headrace.agent.fetch.index.index import TailIndex
from tests.patch import Patch
from tests.simulation.bug import bug
from tests.simulation.problems import Kind


@bug("W5", Kind.UNSEEN, Kind.STALE, Kind.STUCK, Kind.INCONSISTENT)
def new_shards_are_followed_from_their_end(patch: Patch) -> None:
    """As agents of the release before do: what was committed to a new shard before the poll is missed."""

    def follow(self: TailIndex, page: Any) -> None:
        for shard in page.heads.keys() - self.heads.keys():
            self.heads[shard] = page.heads[shard]
        self.shards = len(self.heads)

    patch.replace(TailIndex, "_follow_growth", follow)


@bug("W5", Kind.UNSEEN, Kind.STALE, Kind.STUCK, Kind.INCONSISTENT)
def new_shards_are_never_followed(patch: Patch) -> None:
    """Partitions that moved end where they were."""
    patch.replace(TailIndex, "_follow_growth", lambda self, page: None)
