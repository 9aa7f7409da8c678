"""Judges links: whether their sources answer, whether copies follow, which partitions are not copied.

Place: one area of `headrace doctor`; reads what `headrace link show` reads, from the metastore.
Invariant: reads only; the judge decides on facts alone. A paused link is named, and is no fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace.cli.doctor.findings import Area, Finding
from headrace.config.link_configs import is_paused
from headrace.metastore.api.linked_groups import LinkedGroup
from headrace.metastore.api.links import FoundTopic, LinkedProgress, LinkSource
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.link_lag import NEVER, summed
from headrace.metastore.log.image import MetadataImage

AREA = Area("links")
LATE_MS = 60_000
UNSEEN_MS = 60_000
"""A source that no worker has looked at for this long: no worker runs, or none reaches it."""


class LinksFound(NamedTuple):
    """What the metastore says of all links."""

    links: Mapping[str, Mapping[str, str]]
    """Configs by link."""
    sources: Sequence[LinkSource]
    progress: Sequence[LinkedProgress]
    topics: Sequence[FoundTopic]
    groups: Sequence[LinkedGroup]
    now_ms: int


async def examine(metastore: Metastore, image: MetadataImage, now_ms: int) -> list[Finding]:
    """Every finding; none without links."""
    if not (links := image.links):
        return []
    api = metastore.links
    found = LinksFound(
        links,
        await api.link_sources(),
        await api.linked_progress(),
        await api.found_topics(),
        await metastore.linked_groups.linked_groups(),
        now_ms,
    )
    return list(judge(found))


def judge(found: LinksFound) -> Iterator[Finding]:
    """One finding per link, and one more for topics that are not copied."""
    sources = {source.link: source for source in found.sources}
    for link, configs in sorted(found.links.items()):
        own = [each for each in found.progress if each.link == link]
        if is_paused(configs):
            yield AREA.warn(link, "it is paused: its copies fall behind", f"headrace link resume {link}")
        else:
            yield _judge_source(link, sources.get(link), found.now_ms) or _judge_copies(link, own, found.now_ms)
        refused = [each for each in found.topics if each.link == link and each.problem]
        groups = [each for each in found.groups if each.link == link]
        yield from _judge_groups(link, sources.get(link), groups)
        if refused:
            what = f"{len(refused)} topics of the source are not copied, first {refused[0].name}: {refused[0].problem}"
            yield AREA.warn(f"{link}: topics", what, f"headrace link show {link}; exclude those that are not wanted")


def _judge_groups(link: str, source: LinkSource | None, groups: Sequence[LinkedGroup]) -> Iterator[Finding]:
    """Findings about groups; none if all of them follow, or are here."""
    area, to_do = f"{link}: groups", f"headrace link groups {link}"
    if source is not None and source.groups_problem:
        rights = "does its login have DESCRIBE on the groups?"
        yield AREA.warn(area, f"offsets are not copied: {source.groups_problem}", f"{to_do}; {rights}")
    refused = [each for each in groups if each.kind and each.refusal]
    if refused:
        first = refused[0]
        yield AREA.warn(area, f"{len(refused)} are not copied, first {first.group_id}: {first.refusal}", to_do)
    both = [each.group_id for each in groups if each.came_ms and each.has_members_there]
    if both:
        yield AREA.warn(area, f"{len(both)} came here and have members at the source, too, first {both[0]}", to_do)


def _judge_source(link: str, source: LinkSource | None, now_ms: int) -> Finding | None:
    """Return None for a source that answers."""
    to_do = "check its address, its login and the network of the processes with the role compactor"
    if source is None:
        return AREA.warn(link, "no worker has reached its source yet", f"run headrace compactor; {to_do}")
    if source.problem:
        return AREA.bad(link, f"its source cannot be read: {source.problem}", to_do)
    if now_ms - source.seen_ms > UNSEEN_MS:
        seconds = (now_ms - source.seen_ms) // 1000
        return AREA.bad(link, f"no worker has looked at its source for {seconds} s", "run headrace compactor")
    return None


def _judge_copies(link: str, progress: Sequence[LinkedProgress], now_ms: int) -> Finding:
    problems = [each for each in progress if each.problem]
    if problems:
        first = problems[0]
        what = f"{len(problems)} partitions are not copied, first {first.topic}-{first.partition_index}"
        return AREA.bad(link, f"{what}: {first.problem}", f"headrace link show {link} (docs/operate/LINKS.md)")
    sums, followed = summed(progress, now_ms), summed([each for each in progress if each.current_ms], now_ms)
    if followed.lag_ms > LATE_MS:
        what = f"it is {followed.lag_ms // 1000} s behind its source: {sums.lag:,} offsets"
        return AREA.warn(link, what, "raise link.max.bytes.per.second, or run more compactors with more threads")
    behind = f"{sums.lag:,} offsets to copy" if sums.lag_ms == NEVER else "it follows its source"
    return AREA.ok(link, f"{sums.partitions} partitions, {behind}")
