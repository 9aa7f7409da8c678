"""Job kind `retention`: removes records that are too old or exceed the size limit.

Place: run by the job loop every log.retention.check.interval.ms, in one worker at a time. `wanted_log_start`
decides, metastore enforce_retention acts; the janitor deletes files without live bytes.
Invariant: a log start moves extent by extent from the start and stops at the first extent to keep, as in Kafka with
log segments; every move is fenced by the lease. Rules come from the metadata log only, never from a process's file,
and a move is refused if a config changed after the image that was its reason. Extents below a log start, left by
DeleteRecords or a crashed worker, are removed first, for every topic, because they would count in the partition's
size.
Source: Kafka's UnifiedLog.deleteOldSegments.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter

from headrace.compactor.permit import Undecided
from headrace.jobs.kinds import RETENTION
from headrace.jobs.lease import Lease
from headrace.metastore.api.jobs import Job
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.retention import LogStartAnswer, LogStartTarget, OldestExtents, OldestQuery
from headrace.metastore.log.effective_configs import decided_topic_value
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.snapshot import load_image


class RetentionMetrics:
    """One set per process with the role compactor."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._extents = Counter(
            "headrace_retention_removed_extents", "Extents that retention removed in this process", registry=registry
        )
        self._bytes = Counter(
            "headrace_retention_removed_bytes", "Bytes of batches in these extents", registry=registry
        )

    def removed(self, answer: LogStartAnswer) -> None:
        """Count one partition's part of a call."""
        self._extents.inc(answer.removed_extents)
        self._bytes.inc(answer.removed_bytes)


logger = logging.getLogger(__name__)

UNLIMITED = -1
PARTITIONS_PER_LOOK = 500
"""Number of partitions per query of first extents."""
PARTITIONS_PER_MOVE = 20
EXTENTS_PER_LOOK = 200
"""Extents per call for each partition that has something to remove."""
EXTENTS_PER_MOVE = 1_000
"""A call locks rows of partitions and files for about 10 ms."""


class RetentionRule(NamedTuple):
    """Kafka's retention.ms and retention.bytes; UNLIMITED has neither."""

    retention_ms: int
    retention_bytes: int


KEEP_ALL = RetentionRule(UNLIMITED, UNLIMITED)
SETTINGS_OF_RULES = ("log.cleanup.policy", "log.retention.ms", "log.retention.bytes")


def wanted_log_start(rule: RetentionRule, now_ms: int, log: OldestExtents) -> int:
    """The log start after the rule was applied to `log.extents`; never below the current one.

    At least `retention_bytes` are kept. `log.size_bytes` must not include extents below the log start.
    """
    start, removable = log.log_start_offset, log.size_bytes - rule.retention_bytes
    for extent in log.extents:
        is_too_old = rule.retention_ms != UNLIMITED and extent.newest_ms < now_ms - rule.retention_ms
        is_too_much = rule.retention_bytes != UNLIMITED and extent.length <= removable
        if not (is_too_old or is_too_much):
            break
        start = extent.last_offset + 1
        removable -= extent.length
    return start


def topic_rule(image: MetadataImage, topic: str, undecided: set[str]) -> RetentionRule:
    """The rule of a topic; KEEP_ALL unless its cleanup.policy includes delete.

    UNLIMITED for what neither the topic nor the cluster has a value of: the settings that the cluster lacks are added
    to `undecided`. KEEP_ALL for a linked topic: its log start is that of its source, which its link follows.
    """
    if image.link_of(topic):
        return KEEP_ALL
    policy = decided_topic_value(image, topic, "cleanup.policy")
    if policy is None:
        undecided.add("log.cleanup.policy")
    if policy is None or "delete" not in {item.strip() for item in policy.split(",")}:
        return KEEP_ALL
    limits = []
    for name in ("retention.ms", "retention.bytes"):
        value = decided_topic_value(image, topic, name)
        if value is None:
            undecided.add(f"log.{name}")
        limits.append(UNLIMITED if value is None else int(value))
    return RetentionRule(*limits)


class Retention:
    """A jobs.runner.Handler."""

    def __init__(self, api: Metastore, metrics: RetentionMetrics, undecided: Undecided) -> None:
        self._api, self._metrics, self._undecided = api, metrics, undecided

    async def __call__(self, job: Job, lease: Lease) -> None:
        image = await load_image(self._api.cluster)
        rules = self._rules(image)
        wanted, done = len(rules), 0
        while rules:
            some = dict(islice(rules.items(), PARTITIONS_PER_LOOK))
            if await self._enforce(some, image.offset, lease):
                rules = dict(islice(rules.items(), PARTITIONS_PER_LOOK, None))
                done += len(some)
                lease.progress = f"partitions={done} of={wanted}"
            else:
                logger.info("a config changed while retention ran, reading all again: partitions_left=%d", len(rules))
                image = await load_image(self._api.cluster)
                now = self._rules(image)
                rules = {key: now[key] for key in rules if key in now}

    async def _enforce(self, rules: dict[int, RetentionRule], metadata_offset: int, lease: Lease) -> bool:
        """False if a config has changed since this offset: the rest waits for the new rules."""
        for due in _chunks({key: rules[key] for key in await self._due(rules)}, PARTITIONS_PER_MOVE):
            left: dict[int, RetentionRule] | None = due
            while left:
                left = await self._remove(left, metadata_offset, lease)
            if left is None:
                return False
        return True

    def _rules(self, image: MetadataImage) -> dict[int, RetentionRule]:
        """Return the rules by partition key."""
        found, undecided = dict[int, RetentionRule](), set[str]()
        for topic in image.topics_by_name.values():
            rule = topic_rule(image, topic.name, undecided)
            for index in topic.indexes:
                if (key := topic.key(index)) is not None:
                    found[key] = rule
        for setting in SETTINGS_OF_RULES:
            self._undecided.show(RETENTION.name, setting, waits=setting in undecided)
        return found

    async def _due(self, rules: Mapping[int, RetentionRule]) -> list[int]:
        """Partitions with a first extent to remove, or with extents below the log start."""
        now_ms, logs = await self._api.retention.oldest_extents([OldestQuery(key, 1) for key in rules])
        return [
            log.partition_key
            for log in logs
            if log.known
            and (log.has_leftovers or wanted_log_start(rules[log.partition_key], now_ms, log) > log.log_start_offset)
        ]

    async def _remove(
        self, rules: dict[int, RetentionRule], metadata_offset: int, lease: Lease
    ) -> dict[int, RetentionRule] | None:
        """One chunk of the work; returns the partitions that may have more to remove, None if a config changed."""
        now_ms, logs = await self._api.retention.oldest_extents([OldestQuery(key, EXTENTS_PER_LOOK) for key in rules])
        targets = []
        for log in logs:
            if log.has_leftovers:
                targets.append(LogStartTarget(log.partition_key, log.log_start_offset))
            elif log.known:
                wanted = wanted_log_start(rules[log.partition_key], now_ms, log)
                if wanted > log.log_start_offset:
                    targets.append(LogStartTarget(log.partition_key, wanted))
        answers = await self._api.retention.enforce_retention(
            targets, max_extents=EXTENTS_PER_MOVE, by=lease.token, metadata_offset=metadata_offset
        )
        if answers is None:
            return None
        for answer in answers:
            self._metrics.removed(answer)
        return {answer.partition_key: rules[answer.partition_key] for answer in answers if answer.known}


def _chunks(rules: Mapping[int, RetentionRule], size: int) -> Iterator[dict[int, RetentionRule]]:
    """The same, in chunks."""
    items = iter(rules.items())
    while chunk := dict(islice(items, size)):
        yield chunk
