"""An agent that follows a part of the feed is never wrong: drawn stories (following_story.py), and planted bugs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from headrace.agent.fetch.index.followed_shards import FollowedShards
from headrace.agent.fetch.index.index import TailIndex
from headrace.agent.fetch.index.shard_interest import ShardInterest
from headrace.agent.fetch.waiters import Waiters
from headrace.metastore.api.read import FeedPage
from headrace.metastore.keys import commit_shard
from tests.agent.fetch.following_story import Story, Wrong
from tests.patch import Patch
from tests.planted import PlantedBugs, Trial

EVERYDAY, EVERYDAY_PER_TEST = 40, 20
SLOW, SLOW_PER_TEST = 4_000, 200


def _run(first: int, count: int) -> None:
    for seed in range(first, first + count):
        try:
            Story(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed={seed}") from error


@pytest.mark.requirement("W5")
@pytest.mark.parametrize("first", range(0, EVERYDAY, EVERYDAY_PER_TEST))
def test_a_part_of_the_feed_is_enough(first: int) -> None:
    _run(first, EVERYDAY_PER_TEST)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(EVERYDAY, EVERYDAY + SLOW, SLOW_PER_TEST))
def test_a_part_of_the_feed_is_enough_in_many_more_stories(first: int) -> None:
    _run(first, SLOW_PER_TEST)


def _head_of_after_the_look_up(patch: Patch) -> None:
    """An answer of the primary counts although its shard was followed from a later page on."""

    def is_current(self: TailIndex, key: int, generation: int) -> bool:
        return commit_shard(key, self.shards) in self.heads and self._removed_at <= generation

    patch.replace(TailIndex, "_is_current", is_current)


def _tails_are_kept(patch: Patch) -> None:
    """A shard's head is dropped, and its tails stay."""

    def drop(self: TailIndex, shards: Collection[int]) -> dict[int, int]:
        for shard in shards:
            self.heads.pop(shard, None)
        return {}

    patch.replace(TailIndex, "drop", drop)


def _history_is_kept(patch: Patch) -> None:
    """A shard's tails are dropped, and what the primary said of earlier extents stays."""

    def drop(self: TailIndex, shards: Collection[int]) -> dict[int, int]:
        keep, self.history.forget = self.history.forget, lambda keys=None: None  # type: ignore[method-assign]
        heard = original(self, shards)
        self.history.forget = keep  # type: ignore[method-assign]
        return heard

    original = TailIndex.drop
    patch.replace(TailIndex, "drop", drop)


def _waits_are_forgotten(patch: Patch) -> None:
    """A shard is dropped although a fetch waits for it."""

    def unwanted(self: FollowedShards, page: FeedPage, now: float) -> frozenset[int]:
        return frozenset(self._index.heads.keys() - self._interest.wanted(now))

    patch.replace(FollowedShards, "_unwanted", unwanted)
    patch.replace(TailIndex, "drop", _without_news(TailIndex.drop))


def _without_news(drop: Callable[..., Any]) -> Callable[..., Any]:
    def dropped(self: TailIndex, shards: Collection[int]) -> dict[int, int]:
        drop(self, shards)
        return {}

    return dropped


def _waits_do_not_follow(patch: Patch) -> None:
    """A fetch waits for a shard that is not followed."""
    patch.replace(FollowedShards, "wait", lambda self, keys: None)


def _own_commits_do_not_follow(patch: Patch) -> None:
    """A shard is not followed while this agent commits to it."""
    patch.replace(FollowedShards, "_note_commit", lambda self, keys: None)


def _commits_under_way_do_not_count(patch: Patch) -> None:
    """The shard of a commit may be dropped before the commit is answered, and before it is fed."""
    patch.replace(ShardInterest, "begin_commit", lambda self, keys: None)
    patch.replace(ShardInterest, "end_commit", lambda self, keys: None)


def _dropped_before_it_is_at_the_end(patch: Patch) -> None:
    """A shard is dropped although the page has more of it: an own commit may be in that."""

    def unwanted(self: FollowedShards, page: FeedPage, now: float) -> frozenset[int]:
        heads, page_heads = dict(self._index.heads), page.heads
        self._index.heads = dict(page_heads)
        found = original(self, page, now)
        self._index.heads = heads
        return found & heads.keys()

    original = FollowedShards._unwanted
    patch.replace(FollowedShards, "_unwanted", unwanted)


def _dropped_while_the_shards_grow(patch: Patch) -> None:
    """A shard is dropped although the page has more shards than the index follows: an own commit may be in those."""

    def unwanted(self: FollowedShards, page: FeedPage, now: float) -> frozenset[int]:
        of_old_shards = {shard: head for shard, head in page.heads.items() if shard < self._index.shards}
        return original(self, replace(page, heads=of_old_shards), now)

    original = FollowedShards._unwanted
    patch.replace(FollowedShards, "_unwanted", unwanted)


def _growth_is_followed_by_half(patch: Patch) -> None:
    """When the shards double, the new half of a followed shard is not followed."""

    def follow_growth(self: TailIndex, page: FeedPage) -> None:
        before = dict(self.heads)
        original(self, page)
        self.heads = {shard: head for shard, head in self.heads.items() if shard in before}

    original = TailIndex._follow_growth
    patch.replace(TailIndex, "_follow_growth", follow_growth)


def _skipped_rows_wake_nobody(patch: Patch) -> None:
    """A fetch of a partition that the index lacks sleeps on when another history begins."""
    patch.replace(Waiters, "notify_all", lambda self, new_bytes: None)


BUGS = {
    bug.__name__.strip("_"): bug
    for bug in (
        _head_of_after_the_look_up,
        _tails_are_kept,
        _history_is_kept,
        _waits_are_forgotten,
        _waits_do_not_follow,
        _own_commits_do_not_follow,
        _commits_under_way_do_not_count,
        _dropped_before_it_is_at_the_end,
        _dropped_while_the_shards_grow,
        _growth_is_followed_by_half,
        _skipped_rows_wake_nobody,
    )
}
PLANTED = PlantedBugs("partial following", most=5_000)


@PLANTED.cases(BUGS)
def test_a_planted_bug_is_found(bug: str, trial: Trial) -> None:
    for seed in trial.seeds():
        with trial.planted(BUGS[bug]):
            try:
                Story(seed).run()
            except Wrong as wrong:
                trial.saw(str(wrong))
            except (KeyError, AssertionError):
                trial.saw("", instead="an error")
