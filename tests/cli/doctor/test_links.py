"""X14: what the doctor says of links: a source that is away, copies that lag or have a problem, topics left out."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from headrace.cli.doctor.findings import Level
from headrace.cli.doctor.links import LinksFound, judge
from headrace.metastore.api.linked_groups import NO_OFFSETS, LinkedGroup
from headrace.metastore.api.links import FoundTopic, LinkedProgress, LinkSource, Promotion

pytestmark = pytest.mark.requirement("X14")
NOW_MS = 1_000_000
SEEN = LinkSource("old", "c", NOW_MS - 5_000, "")
ACTIVE = {"topics": "a", "link.state": "active"}


def _copy(**more: Any) -> LinkedProgress:
    values: dict[str, Any] = {
        "link": "old", "topic": "a", "topic_id": uuid.UUID(int=1), "partition_index": 3, "partition_key": 1,
        "log_start_offset": 0, "high_watermark": 100, "source_start": 0, "source_end": 100, "source_stable": 100,
        "seen_ms": NOW_MS, "current_ms": NOW_MS, "copied_bytes": 1, "lost": 0, "promotion": Promotion.NONE,
        "is_ready": False, "problem": "",
    } | more  # fmt: skip
    return LinkedProgress(**values)


def _judged(
    *copies: LinkedProgress,
    source: LinkSource | None = SEEN,
    state: str = "active",
    topics: tuple[FoundTopic, ...] = (),
    groups: tuple[LinkedGroup, ...] = (),
) -> list[tuple[Level, str]]:
    links = {"old": ACTIVE | {"link.state": state}}
    found = LinksFound(links, [] if source is None else [source], copies, topics, groups, NOW_MS)
    return [(each.level, each.found) for each in judge(found)]


def test_a_link_that_follows_is_ok_and_so_is_its_first_backlog() -> None:
    assert _judged(_copy()) == [(Level.OK, "1 partitions, it follows its source")]
    assert _judged(_copy(high_watermark=10, current_ms=0)) == [(Level.OK, "1 partitions, 90 offsets to copy")]


@pytest.mark.parametrize(
    ("source", "level", "found"),
    [
        (None, Level.WARN, "no worker has reached its source yet"),
        (SEEN._replace(problem="no server answered"), Level.BAD, "its source cannot be read: no server answered"),
        (SEEN._replace(seen_ms=NOW_MS - 90_000), Level.BAD, "no worker has looked at its source for 90 s"),
    ],
)
def test_a_source_that_is_away_is_named(source: LinkSource | None, level: Level, found: str) -> None:
    assert _judged(_copy(), source=source) == [(level, found)]


def test_problems_and_lags_are_named() -> None:
    broken = _copy(problem="the source was truncated")
    assert _judged(_copy(), broken) == [(Level.BAD, "1 partitions are not copied, first a-3: the source was truncated")]
    late = _copy(high_watermark=90, current_ms=NOW_MS - 120_000)
    assert _judged(late) == [(Level.WARN, "it is 120 s behind its source: 10 offsets")]
    assert _judged(late, state="paused") == [(Level.WARN, "it is paused: its copies fall behind")]


def test_topics_that_are_not_copied_are_counted() -> None:
    refused = FoundTopic("old", "b", uuid.UUID(int=2), 1, 0, {}, "a topic of this name is here already, and is no copy")
    assert _judged(_copy(), topics=(refused, refused._replace(name="c", problem=""))) == [
        (Level.OK, "1 partitions, it follows its source"),
        (
            Level.WARN,
            "1 topics of the source are not copied, first b: a topic of this name is here already, and is no copy",
        ),
    ]


def test_groups_that_are_not_copied_or_read_on_both_sides_are_named() -> None:
    follows = LinkedGroup("old", "app", "classic", "Stable", "", 0, 0, NOW_MS, 0, 3, 7)
    assert _judged(_copy(), groups=(follows,))[1:] == []
    queue = follows._replace(group_id="queue", kind="share", refusal=NO_OFFSETS)
    asked = follows._replace(group_id="asked", kind="", refusal="may not READ")
    both = follows._replace(group_id="both", came_ms=NOW_MS)
    assert _judged(_copy(), groups=(follows, queue, asked, both))[1:] == [
        (Level.WARN, f"1 are not copied, first queue: {NO_OFFSETS}"),
        (Level.WARN, "1 came here and have members at the source, too, first both"),
    ]
    silent = SEEN._replace(groups_problem="groups: not authorized")
    assert _judged(_copy(), source=silent)[1:] == [
        (Level.WARN, "offsets are not copied: groups: not authorized"),
    ]
