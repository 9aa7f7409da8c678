"""Deliberate bugs in how agents follow a part of the feed: each must be caught in suites.PARTS.

Lost wake-ups only delay a reader, who looks again at its timeout, and a head of after the look-up shows in few
schedules: tests/agent/fetch/test_partial_following.py has these.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace.agent.fetch.index import followed_shards
from headrace.agent.fetch.index.followed_shards import FollowedShards
from headrace.agent.fetch.index.index import TailIndex
from headrace.agent.fetch.index.own_commits import OwnCommits
from tests.patch import Patch
from tests.simulation.bug import bug
from tests.simulation.plan import Plan
from tests.simulation.problems import Kind


def _compares(plan: Plan) -> bool:
    return plan.compares_lists


@bug("W5", Kind.UNSEEN, Kind.STALE, Kind.STUCK)
def tails_stay_when_their_head_is_dropped(patch: Patch) -> None:
    """A shard is not followed any more, and what was known of its partitions is shown on."""

    def drop(self: TailIndex, shards: Collection[int]) -> dict[int, int]:
        for shard in shards:
            self.heads.pop(shard, None)
        return {}

    patch.replace(TailIndex, "drop", drop)


@bug("X4", Kind.UNLISTED, may_show=_compares)
def own_commits_are_not_followed(patch: Patch) -> None:
    """A shard that this agent commits to is dropped before the commit was fed, and nothing else knows of it."""
    patch.replace(FollowedShards, "_note_commit", lambda self, keys: None)
    patch.replace(OwnCommits, "note", lambda self, commits, answers: None)


@bug("X4", Kind.UNLISTED, may_show=_compares)
def no_agent_follows_by_hash(patch: Patch) -> None:
    """Only the committing agent knows of a commit that nothing reads."""
    patch.replace(followed_shards, "assigned_shards", lambda *given: frozenset())


@bug("X4", Kind.UNLISTED, may_show=_compares)
def own_commits_are_forgotten_when_the_feed_goes_back(patch: Patch) -> None:
    """The list has what was fed; what only this agent knew is left out."""
    patch.replace(OwnCommits, "extents", lambda self, without: [])
