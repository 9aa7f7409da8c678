"""Bugs that are planted into the SQL of a halving, each found by a test of test_halving_topics.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headrace.storage.errors import HeadraceError
from tests.metastore import test_halving_topics as topics
from tests.metastore.halving_scenes import HalvingScene
from tests.metastore.sql_sources import plant
from tests.metastore.test_halving_topics import scene

__all__ = ["scene"]
pytestmark = pytest.mark.requirement("X5")
Check = Callable[[HalvingScene], Awaitable[None]]
PLANTED: dict[str, tuple[str, str, str, Check]] = {
    "a producer's switch is not noted": (
        "commit_files",
        "IF v_merges THEN\n            PERFORM note_merges",
        "IF false THEN\n            PERFORM note_merges",
        topics.test_a_producer_switches_once,
    ),
    "duplicates by the parent's producer states": (
        "judge_batches",
        "coalesce(array_position(p_part_key, key_of_alias(p_part_key[part], alias)), part)",
        "part",
        topics.test_an_alias_appends_to_the_parent_and_knows_the_childs_duplicates,
    ),
    "an alias's producer is kept with the parent": (
        "commit_files",
        "coalesce(v_prod_key[prod], p_part_key[p_batch_part[last]])",
        "p_part_key[p_batch_part[last]]",
        topics.test_an_alias_appends_to_the_parent_and_knows_the_childs_duplicates,
    ),
    "the commit does not look at pauses": (
        "commit_files",
        "v_states && ARRAY[state_paused(), state_alias(), state_merges()]\n                    OR ",
        "",
        topics.test_a_paused_child_sends_batches_back_but_duplicates,
    ),
    "a merge that asks no group": (
        "merge_children",
        "WHERE g.lag > 0)",
        "WHERE false)",
        topics.test_a_child_is_merged_when_every_group_that_counts_has_committed_its_end,
    ),
    "a merge that asks no share group": (
        "merge_children",
        "FROM share_partitions WHERE partition_key = p_child_key",
        "FROM share_partitions WHERE false",
        topics.test_a_child_is_merged_when_every_share_group_has_done_its_records,
    ),
    "a merge that waits for excluded groups": (
        "merge_children",
        " AND r.group_id <> ALL (p_excluded)",
        "",
        topics.test_a_child_is_merged_when_every_group_that_counts_has_committed_its_end,
    ),
    "a merge that leaves older aliases where they are": (
        "merge_children",
        "AND a.parent_key = m.child_key;",
        "AND false;",
        topics.test_two_halvings_make_aliases_of_aliases,
    ),
    "a doubling that leaves aliases where they are": (
        "change_partition_counts",
        "AND m.child_key & 16777215 >= g.count;",
        "AND false;",
        topics.test_two_halvings_make_aliases_of_aliases,
    ),
    "a group that reads a child's old records again": (
        "double_topic",
        "SELECT o.group_id, c.partition_key, h.high_watermark,",
        "SELECT o.group_id, c.partition_key, c.log_start_offset,",
        topics.test_a_halved_topic_doubles_again_with_the_logs_that_its_children_had,
    ),
    "a share group that reads a child's old records": (
        "double_topic",
        "SELECT s.group_id, c.partition_key, h.high_watermark,",
        "SELECT s.group_id, c.partition_key, c.log_start_offset,",
        topics.test_a_halved_topic_doubles_again_with_the_logs_that_its_children_had,
    ),
    "a count that is shown at once": (
        "halve_topic",
        "OR v_now_ms - since_ms < v_halving.show_after_ms",
        "",
        topics.test_the_lower_count_is_shown_later_and_aliases_are_not_listed,
    ),
}


@pytest.mark.parametrize("bug", PLANTED)
async def test_planted_bugs_are_caught(scene: HalvingScene, metastore_url: str, bug: str) -> None:
    function, right, wrong, check = PLANTED[bug]
    plant(metastore_url, function, right, wrong)
    with pytest.raises((AssertionError, HeadraceError)):
        await check(scene)
