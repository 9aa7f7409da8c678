"""What LINKS shows of a link: its configs without secrets, its source, its topics with their lag. Pure.

Place: under links.py. The sums are metastore/link_lag.py.
Invariant: an answer is bounded: topics with problems and the largest lag come first, and of the problems of a topic
the first ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from headrace.config.link_configs import shown
from headrace.metastore.api.linked_groups import LinkedGroup
from headrace.metastore.api.links import FoundTopic, LinkedProgress, LinkSource, Promotion
from headrace.metastore.link_lag import summed
from headrace.protocol.link_requests import NEVER, TOPICS_MAX, ShownGroup, ShownLink, ShownTopic

PROBLEMS_MAX = 10
"""Problems that are shown of one topic."""
NOT_CREATED = "the controller has not created the copy yet"
NOT_JUDGED = "the controller has not judged the group yet"
ON_BOTH_SIDES = "it came here, and has members at the source, too: each side reads everything"


def shown_link(
    name: str,
    configs: Mapping[str, str],
    source: LinkSource | None,
    progress: Sequence[LinkedProgress],
    found: Sequence[FoundTopic],
    now_ms: int,
    *,
    has_topics: bool,
) -> ShownLink:
    """The answer about one link. `progress`, `found`: of this link only; `has_topics`: with its topics."""
    sums = summed(progress, now_ms)
    topics = _topics(progress, found, now_ms)
    return ShownLink(
        name=name,
        configs=shown(configs),
        cluster_id="" if source is None else source.cluster_id,
        seen_ms=NEVER if source is None else max(now_ms - source.seen_ms, 0),
        problem="" if source is None else source.problem,
        topic_count=sum(topic.is_linked for topic in topics),
        partitions=sums.partitions,
        records=sums.records,
        source_records=sums.source_records,
        lag=sums.lag,
        lag_bytes=sums.lag_bytes,
        lag_ms=sums.lag_ms,
        copied_bytes=sums.copied_bytes,
        lost=sums.lost,
        problems=sum(bool(topic.problems) for topic in topics),
        topics=tuple(topics[:TOPICS_MAX]) if has_topics else (),
        groups_problem="" if source is None else source.groups_problem,
    )


def shown_groups(groups: Sequence[LinkedGroup], now_ms: int) -> tuple[ShownGroup, ...]:
    """The answer about groups of one link."""
    shown_ones = [_group(group, now_ms) for group in groups if group.kind]
    return tuple(sorted(shown_ones, key=lambda each: (not each.problem, -each.behind, each.group_id))[:TOPICS_MAX])


def _group(group: LinkedGroup, now_ms: int) -> ShownGroup:
    problem = NOT_JUDGED if group.refusal is None else group.refusal
    if not problem and group.came_ms and group.has_members_there:
        problem = ON_BOTH_SIDES
    return ShownGroup(
        group_id=group.group_id,
        kind=group.kind,
        source_state=group.state,
        has_members_there=group.has_members_there,
        is_here=bool(group.came_ms),
        offsets=group.offsets,
        behind=group.behind,
        copied_ms=max(now_ms - group.copied_ms, 0) if group.copied_ms else NEVER,
        problem=problem,
    )


def _topics(progress: Sequence[LinkedProgress], found: Sequence[FoundTopic], now_ms: int) -> list[ShownTopic]:
    linked = defaultdict[str, list[LinkedProgress]](list)
    for each in progress:
        linked[each.topic].append(each)
    others = [topic for topic in found if topic.name not in linked]
    shown_topics = [
        *(_linked(name, partitions, now_ms) for name, partitions in linked.items()),
        *(_other(topic) for topic in others),
    ]
    return sorted(shown_topics, key=lambda topic: (not topic.problems, -topic.lag, topic.name))


def _linked(name: str, partitions: Sequence[LinkedProgress], now_ms: int) -> ShownTopic:
    sums = summed(partitions, now_ms)
    promotion = max((each.promotion for each in partitions), default=Promotion.NONE)
    problems = [f"partition {each.partition_index}: {each.problem}" for each in partitions if each.problem]
    return ShownTopic(
        name=name,
        partitions=sums.partitions,
        records=sums.records,
        source_records=sums.source_records,
        lag=sums.lag,
        lag_ms=sums.lag_ms,
        copied_bytes=sums.copied_bytes,
        lost=sums.lost,
        promotion="" if promotion is Promotion.NONE else promotion.name.lower(),
        ready=sums.ready,
        problems=tuple(problems[:PROBLEMS_MAX]),
    )


def _other(topic: FoundTopic) -> ShownTopic:
    return ShownTopic(
        name=topic.name,
        partitions=topic.partition_count,
        problems=(topic.problem or NOT_CREATED,),
        is_linked=False,
    )
