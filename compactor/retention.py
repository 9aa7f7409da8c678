"""Job kind `retention`: removes records that are too old or exceed the size limit.

Place: run by the job loop every log.retention.check.interval.ms, in one worker at a time. `wanted_log_start`
decides, metastore move_log_starts acts; the janitor deletes files without live bytes.
Invariant: a log start moves extent by extent from the start and stops at the first extent to keep, as in Kafka
with log segments; every move is fenced by the lease. Extents below a log start, left by DeleteRecords or a crashed
worker, are removed first, for every topic, because they would count in the partition's size.
Source: Kafka's UnifiedLog.deleteOldSegments.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple, Protocol

from headrace.compactor.lease import Lease
from headrace.compactor.retention_metrics import RetentionMetrics
from headrace.metastore.api.jobs import Job
from headrace.metastore.api.metadata_log import MetadataLogApi
from headrace.metastore.api.retention import LogStartTarget, OldestExtents, OldestQuery, RetentionApi
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.loading import load_image

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


def topic_rule(configs: EffectiveConfigs, image: MetadataImage, topic: str) -> RetentionRule:
    """The rule of a topic; KEEP_ALL unless its cleanup.policy includes delete."""
    policy = configs.topic_value(image, topic, "cleanup.policy")
    if "delete" not in {item.strip() for item in policy.split(",")}:
        return KEEP_ALL
    return RetentionRule(
        int(configs.topic_value(image, topic, "retention.ms")),
        int(configs.topic_value(image, topic, "retention.bytes")),
    )


class RetentionMetastore(RetentionApi, MetadataLogApi, Protocol):
    """The part of the metastore that retention needs."""


class Retention:
    """A compactor.runner.Handler."""

    def __init__(self, api: RetentionMetastore, configs: EffectiveConfigs, metrics: RetentionMetrics) -> None:
        self._api, self._configs, self._metrics = api, configs, metrics

    async def __call__(self, job: Job, lease: Lease) -> None:
        rules = self._rules(await load_image(self._api))
        done = 0
        for some in _chunks(rules, PARTITIONS_PER_LOOK):
            for due in _chunks({key: some[key] for key in await self._due(some)}, PARTITIONS_PER_MOVE):
                while due:
                    due = await self._remove(due, lease)
            done += len(some)
            lease.progress = f"partitions={done} of={len(rules)}"

    def _rules(self, image: MetadataImage) -> dict[int, RetentionRule]:
        """By partition key."""
        return {
            key: rule
            for topic in image.topics_by_name.values()
            for rule in [topic_rule(self._configs, image, topic.name)]
            for index in range(len(topic.leader_epochs))
            if (key := topic.key(index)) is not None
        }

    async def _due(self, rules: Mapping[int, RetentionRule]) -> list[int]:
        """Partitions with a first extent to remove, or with extents below the log start."""
        now_ms, logs = await self._api.oldest_extents([OldestQuery(key, 1) for key in rules])
        return [
            log.partition_key
            for log in logs
            if log.known
            and (log.has_leftovers or wanted_log_start(rules[log.partition_key], now_ms, log) > log.log_start_offset)
        ]

    async def _remove(self, rules: dict[int, RetentionRule], lease: Lease) -> dict[int, RetentionRule]:
        """One chunk of the work; returns the partitions that may have more to remove."""
        now_ms, logs = await self._api.oldest_extents([OldestQuery(key, EXTENTS_PER_LOOK) for key in rules])
        targets = []
        for log in logs:
            if log.has_leftovers:
                targets.append(LogStartTarget(log.partition_key, log.log_start_offset))
            elif log.known:
                wanted = wanted_log_start(rules[log.partition_key], now_ms, log)
                if wanted > log.log_start_offset:
                    targets.append(LogStartTarget(log.partition_key, wanted))
        answers = await self._api.move_log_starts(targets, max_extents=EXTENTS_PER_MOVE, by=lease.token)
        for answer in answers:
            self._metrics.removed(answer)
        return {answer.partition_key: rules[answer.partition_key] for answer in answers if answer.known}


def _chunks(rules: Mapping[int, RetentionRule], size: int) -> Iterator[dict[int, RetentionRule]]:
    """The same, in chunks."""
    items = iter(rules.items())
    while chunk := dict(islice(items, size)):
        yield chunk
