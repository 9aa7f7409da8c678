"""Job `link-topics`: find out which topics of a source its link names.

Place: in the job loop of links, one job per link at a time, planned by planning.py. The active controller makes linked
topics of what is reported here.
Invariant: what a source says is bounded: TOPICS_MAX topics, and only configs that a topic can have here. A source that
cannot be read is a problem of the link, with a pause that doubles, and one line a minute in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from headrace.compactor.links.copy_job import SourceOpener
from headrace.compactor.links.metrics import LinkMetrics
from headrace.compactor.links.source import Source, SourceTopic
from headrace.compactor.links.turns import TURN_SECONDS, others_wait
from headrace.config import table_configs
from headrace.config.link_configs import LINK_NAME, TopicFilter, is_paused
from headrace.config.topic_configs import LOW_LATENCY_ENABLE, why_invalid
from headrace.jobs.kinds import LINK_TOPICS, PLAN_LINKS
from headrace.jobs.lease import Lease
from headrace.metastore.api.jobs import Job, JobToken
from headrace.metastore.api.links import FoundTopic, LinkApi, SourceReport
from headrace.metastore.api.reports import ReportApi
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, InvalidError

logger = logging.getLogger(__name__)

RUN_SECONDS = 300.0
LOOK_SECONDS, LOOK_SECONDS_MAX = 5.0, 60.0
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

    def __init__(
        self, links: LinkApi, reports: ReportApi, opener: SourceOpener, clock: Clock, metrics: LinkMetrics
    ) -> None:
        self._links, self._reports = links, reports
        self._opener, self._clock, self._metrics = opener, clock, metrics
        self._logged_at: dict[str, float] = {}

    async def handle(self, job: Job, lease: Lease) -> None:
        """Look at the source of the link `job.key` again and again. FencedError if the lease is lost."""
        link, until = job.key, self._clock.monotonic() + RUN_SECONDS
        turn = self._clock.monotonic() + TURN_SECONDS
        configs = (await self._links.link_configs()).get(link)
        if configs is None or is_paused(configs):
            return
        source: Source | None = None
        pause = LOOK_SECONDS
        try:
            while True:
                try:
                    source = source or self._opener.open(link, configs)
                    report = await found(link, source, TopicFilter(configs))
                except HeadraceError as error:
                    report = SourceReport(link, "", (), str(error)[:PROBLEM_CHARACTERS_MAX])
                await self._report(lease.token, report)
                pause = min(2 * pause, LOOK_SECONDS_MAX) if report.problem else LOOK_SECONDS
                lease.progress = f"topics={len(report.topics)}"
                if not await self._rest(link, configs, pause):
                    return
                now = self._clock.monotonic()
                if now >= until or (now >= turn and await others_wait(self._reports, LOOKS)):
                    return
        finally:
            if source is not None:
                await source.close()

    async def _rest(self, link: str, configs: Mapping[str, str], seconds: float) -> bool:
        """Wait; False if the link has other configs then."""
        until = self._clock.monotonic() + seconds
        while self._clock.monotonic() < until:
            await self._clock.sleep(min(LOOK_SECONDS, until - self._clock.monotonic()))
            if (await self._links.link_configs()).get(link) != configs:
                return False
        return True

    async def _report(self, token: JobToken, report: SourceReport) -> None:
        """Report what was found."""
        is_same = await self._links.report_source(token, report)
        problem = report.problem if is_same else "another cluster answers"
        if not problem:
            self._logged_at.pop(report.link, None)
            return
        self._metrics.source_failures.labels(report.link).inc()
        now = self._clock.monotonic()
        if now - self._logged_at.get(report.link, -LOG_SECONDS) >= LOG_SECONDS:
            self._logged_at[report.link] = now
            logger.warning("link cannot find topics: link=%s error=%s", report.link, problem)


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
