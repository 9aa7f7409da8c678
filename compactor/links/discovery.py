"""Job `link-topics`: find out which topics and groups of a source its link names, and copy the offsets of the groups.

Place: in the job loop of links, one job per link at a time, planned by planning.py. The active controller makes linked
topics of what is reported here; groups.py copies offsets.
Invariant: what a source says is bounded: TOPICS_MAX topics, and only configs that a topic can have here. A source that
cannot be read is a problem of the link, with a pause that doubles, and one line a minute in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Coroutine, Mapping
from typing import Any

from headrace.compactor.links.copy_job import SourceOpener
from headrace.compactor.links.groups import GroupCopies
from headrace.compactor.links.metrics import LinkMetrics
from headrace.compactor.links.source import Source, SourceTopic
from headrace.compactor.links.turns import TURN_SECONDS, others_wait
from headrace.config import table_configs
from headrace.config.link_configs import DELETES, LINK_NAME, GroupFilter, TopicFilter, is_paused, value_of
from headrace.config.topic_configs import LOW_LATENCY_ENABLE, why_invalid
from headrace.jobs.kinds import LINK_TOPICS, PLAN_LINKS
from headrace.jobs.lease import Lease
from headrace.metastore.api.jobs import Job, JobToken
from headrace.metastore.api.links import GONE, FoundTopic, SourceReport
from headrace.metastore.api.metastore import Metastore
from headrace.storage.clock import Clock
from headrace.storage.errors import FencedError, HeadraceError, InvalidError

logger = logging.getLogger(__name__)

RUN_SECONDS = 300.0
LOOK_SECONDS, LOOK_SECONDS_MAX = 5.0, 60.0
ANSWER_SECONDS = 0.5
"""How often coordinators that wait for last offsets are looked for."""
MISSING_LOOKS, MISSING_SECONDS = 4, 15.0
"""A topic is taken for deleted if it was in none of so many looks over so long a time."""
LOG_SECONDS = 60.0
LOOKS = (LINK_TOPICS.name, PLAN_LINKS.name)
"""What the slots for this job have to do."""
TOPICS_MAX = 10_000
"""Topics that one link takes."""
PROBLEM_CHARACTERS_MAX = 1_000
NOT_COPIED = frozenset({LINK_NAME, LOW_LATENCY_ENABLE})
"""Configs that say what a topic of this cluster is."""


class LinkTopics:
    """Runs jobs of kind `link-topics`."""

    def __init__(self, metastore: Metastore, opener: SourceOpener, clock: Clock, metrics: LinkMetrics) -> None:
        self._metastore, self._opener, self._clock, self._metrics = metastore, opener, clock, metrics
        self._logged_at: dict[str, float] = {}

    async def handle(self, job: Job, lease: Lease) -> None:
        """Look at the source of the link `job.key` again and again. FencedError if the lease is lost."""
        link, until = job.key, self._clock.monotonic() + RUN_SECONDS
        turn = self._clock.monotonic() + TURN_SECONDS
        configs = (await self._metastore.links.link_configs()).get(link)
        if configs is None or is_paused(configs):
            return
        run = _Run(self._metastore, self._clock, link, configs, lease.token)
        pause = LOOK_SECONDS
        try:
            while True:
                problem, topics = await run.look(self._opener)
                self._note(link, problem)
                pause = min(2 * pause, LOOK_SECONDS_MAX) if problem else LOOK_SECONDS
                lease.progress = f"topics={topics}"
                if not await run.rest(pause):
                    return
                now = self._clock.monotonic()
                if now >= until or (now >= turn and await others_wait(self._metastore.reports, LOOKS)):
                    return
        finally:
            await run.close()

    def _note(self, link: str, problem: str) -> None:
        """Count a look that failed, and log it now and then."""
        if not problem:
            self._logged_at.pop(link, None)
            return
        self._metrics.source_failures.labels(link).inc()
        now = self._clock.monotonic()
        if now - self._logged_at.get(link, -LOG_SECONDS) >= LOG_SECONDS:
            self._logged_at[link] = now
            logger.warning("link cannot look at its source: link=%s error=%s", link, problem)


class _Run:
    """One run of the job: the connections to the source, and what is known of it meanwhile."""

    def __init__(
        self, metastore: Metastore, clock: Clock, link: str, configs: Mapping[str, str], token: JobToken
    ) -> None:
        self._metastore, self._clock, self._link, self._configs, self._token = metastore, clock, link, configs, token
        self._names, self._group_names = TopicFilter(configs), GroupFilter(configs)
        self._source: Source | None = None
        self._groups: GroupCopies | None = None
        self._missing = MissingTopics()

    async def look(self, opener: SourceOpener) -> tuple[str, int]:
        """Report topics, then groups; the problem, and how many topics there are."""
        try:
            self._source = self._source or opener.open(self._link, self._configs)
            report = await found(self._link, self._source, self._names)
        except HeadraceError as error:
            report = SourceReport(self._link, "", (), str(error)[:PROBLEM_CHARACTERS_MAX])
        if not report.problem and value_of(self._configs, DELETES) == "true":
            report = report._replace(topics=[*report.topics, *await self._gone(report)])
        if not await self._metastore.links.report_source(self._token, report):
            return "another cluster answers", len(report.topics)
        if not report.problem and self._group_names and self._source is not None:
            self._groups = self._groups or GroupCopies(
                self._link,
                self._metastore.linked_groups,
                self._source,
                self._group_names,
                self._token,
                report.cluster_id,
            )
            return await self._guarded(self._groups.look()), len(report.topics)
        return report.problem, len(report.topics)

    async def rest(self, seconds: float) -> bool:
        """Wait, and answer coordinators meanwhile; False if the link has other configs then."""
        now = self._clock.monotonic()
        until, next_look = now + seconds, now + LOOK_SECONDS
        while (now := self._clock.monotonic()) < until:
            await self._clock.sleep(min(LOOK_SECONDS if self._groups is None else ANSWER_SECONDS, until - now))
            if self._groups is not None:
                await self._guarded(self._groups.answer())
            if self._clock.monotonic() >= next_look:
                next_look += LOOK_SECONDS
                if not await self._is_same():
                    return False
        return await self._is_same()

    async def close(self) -> None:
        """End all connections."""
        if self._source is not None:
            await self._source.close()

    async def _is_same(self) -> bool:
        return (await self._metastore.links.link_configs()).get(self._link) == self._configs

    async def _guarded(self, work: Coroutine[Any, Any, object]) -> str:
        """Let errors be the groups' problem, which is returned. FencedError if the lease is lost."""
        try:
            await work
        except FencedError:
            raise
        except HeadraceError as error:
            problem = f"groups: {error}"[:PROBLEM_CHARACTERS_MAX]
            await self._metastore.linked_groups.note_groups_problem(self._token, self._link, problem)
            return problem
        return ""

    async def _gone(self, report: SourceReport) -> list[FoundTopic]:
        """Return the copies of topics that the source has deleted."""
        linked = await self._metastore.links.linked_topics()
        copies = {topic.name: topic for topic in linked if topic.link == self._link}
        missing = copies.keys() - {topic.name for topic in report.topics}
        sure = self._missing.look(missing, self._clock.monotonic())
        return [FoundTopic(self._link, name, copies[name].source_id, 0, 0, {}, GONE) for name in sorted(sure)]


class MissingTopics:
    """Judges which topics are deleted at the source: one answer of a broker that is behind does not say so. Pure."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[float, int]] = {}
        """Name -> when it was first missing, and in how many looks since."""

    def look(self, missing: Collection[str], now: float) -> set[str]:
        """Note what is missing in this look; return those that are gone."""
        known = {name: self._since.get(name, (now, 0)) for name in missing}
        self._since = {name: (since, looks + 1) for name, (since, looks) in known.items()}
        return {
            name
            for name, (since, looks) in self._since.items()
            if looks >= MISSING_LOOKS and now - since >= MISSING_SECONDS
        }


async def found(link: str, source: Source, names: TopicFilter) -> SourceReport:
    """Return what the source has of what the link names. Errors as Source; InvalidError for too many topics."""
    metadata = await source.metadata()
    topics = sorted((topic for topic in metadata.topics.values() if names.matches(topic.name)), key=lambda t: t.name)
    if len(topics) > TOPICS_MAX:
        raise InvalidError(f"the link names {len(topics)} topics: at most {TOPICS_MAX}")
    configs = await source.configs([topic.name for topic in topics if not topic.problem])
    return SourceReport(
        link, metadata.cluster_id, [_found(link, topic, configs.get(topic.name, {})) for topic in topics]
    )


def _found(link: str, topic: SourceTopic, configs: Mapping[str, str]) -> FoundTopic:
    return FoundTopic(
        link,
        topic.name,
        topic.topic_id,
        len(topic.partitions),
        max((partition.leader_epoch for partition in topic.partitions), default=0),
        {name: value for name, value in sorted(configs.items()) if _is_copied(name, value)},
        topic.problem,
    )


def _is_copied(name: str, value: str) -> bool:
    """Return whether the copy has this config, too."""
    return (
        name not in NOT_COPIED and not name.startswith(table_configs.TABLE_PREFIX) and why_invalid(name, value) is None
    )
