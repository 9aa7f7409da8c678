"""Links in Postgres: what is found at sources, linked topics, and what is appended to them.

Place: implements metastore.api.links.LinkApi, under the workers of links, the active controller and tools.
Invariant: topics and their records in one call of one function, under the log head's lock, as topics.py has it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from headrace.config.link_configs import LINK_NAME
from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.api.compaction import NewFile
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.links import (
    CopiedProducer,
    FoundTopic,
    LinkApi,
    LinkedGrowth,
    LinkedOutcome,
    LinkedRun,
    LinkedTopic,
    NewLinkedTopic,
    PartitionReport,
    Promotion,
    SourceReport,
)
from headrace.metastore.log.kip631_records import TOPIC_RESOURCE, ConfigRecord
from headrace.metastore.log.records import encode_new_partitions, encode_record
from headrace.metastore.postgres.cluster.topics import topic_records
from headrace.metastore.postgres.packing import pack_int4, pack_int8
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement
from headrace.storage.errors import FencedError, InvalidError, NotFoundError

_REPORT_SOURCE = Statement("report_source", writes=True)
_FOUND_TOPICS = Statement("found_topics", writes=False)
_LINK_CONFIGS = Statement("link_configs", writes=False)
_LINKED_TOPICS = Statement("linked_topics", writes=False)
_NOTE_LINKED_CONFIGS = Statement("note_linked_configs", writes=True)
_CREATE_LINKED_TOPICS = Statement("create_linked_topics", writes=True)
_GROW_LINKED_TOPICS = Statement("grow_linked_topics", writes=True)
_APPEND_LINKED = Statement("append_linked", writes=True)
_ADD_COPIED_PRODUCERS = Statement("add_copied_producers", writes=True)
_REPORT_PARTITIONS = Statement("report_partitions", writes=True)
_PROMOTE_TOPICS = Statement("promote_topics", writes=True)


class PostgresLinks(PostgresNoun):
    """Implements metastore.api.links.LinkApi."""

    link_sources = calls(LinkApi.link_sources, writes=False)
    linked_partitions = calls(LinkApi.linked_partitions, writes=False)
    linked_progress = calls(LinkApi.linked_progress, writes=False)
    note_refused_topics = calls(LinkApi.note_refused_topics, writes=True)
    ask_promotion = calls(LinkApi.ask_promotion, writes=True)
    forget_link = calls(LinkApi.forget_link, writes=True)

    async def link_configs(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for link, name, value in await _LINK_CONFIGS.rows(self.pool):
            found.setdefault(link, {})[name] = value
        return found

    async def report_source(self, token: JobToken, report: SourceReport) -> bool:
        topics = list(report.topics)
        (is_same,) = await _REPORT_SOURCE.row(
            self.pool,
            job_id=token.job_id,
            epoch=token.epoch,
            link=report.link,
            cluster_id=report.cluster_id,
            problem=report.problem,
            names=[topic.name for topic in topics],
            source_ids=[topic.source_id for topic in topics],
            counts=[topic.partition_count for topic in topics],
            leader_epochs=[topic.leader_epoch for topic in topics],
            configs=[msgspec.json.encode(topic.configs).decode() for topic in topics],
            problems=[topic.problem for topic in topics],
        )
        return bool(is_same)

    async def found_topics(self) -> list[FoundTopic]:
        rows = await _FOUND_TOPICS.rows(self.pool)
        return [
            FoundTopic(link, name, source_id, count, epoch, msgspec.json.decode(configs), problem)
            for link, name, source_id, count, epoch, configs, problem in rows
        ]

    async def linked_topics(self) -> list[LinkedTopic]:
        rows = await _LINKED_TOPICS.rows(self.pool)
        return [
            LinkedTopic(topic_id, name, link, source_id, Promotion(promotion), configs and msgspec.json.decode(configs))
            for topic_id, name, link, source_id, promotion, configs in rows
        ]

    async def note_linked_configs(self, configs: Mapping[uuid.UUID, Mapping[str, str]]) -> None:
        encoded = [msgspec.json.encode(each).decode() for each in configs.values()]
        await _NOTE_LINKED_CONFIGS.row(self.pool, topic_ids=list(configs), configs=encoded)

    async def create_linked_topics(
        self, controller_epoch: int, expected_head: int, topics: Sequence[NewLinkedTopic]
    ) -> bool:
        records: list[bytes] = []
        numbers: list[int] = []
        for linked in topics:
            if linked.topic.configs.get(LINK_NAME) != linked.link:
                raise InvalidError(f"a linked topic needs {LINK_NAME}: topic={linked.topic.name} link={linked.link}")
            numbers.append(expected_head + len(records))
            records += topic_records(linked.topic, linked.leader_epoch)
        configs = [(each.topic.name, *config) for each in topics for config in each.topic.configs.items()]
        (created,) = await _CREATE_LINKED_TOPICS.row(
            self.pool,
            controller_epoch=controller_epoch,
            expected_head=expected_head,
            records=records,
            topic_ids=[each.topic.topic_id for each in topics],
            topic_numbers=numbers,
            names=[each.topic.name for each in topics],
            counts=[each.topic.partition_count for each in topics],
            links=[each.link for each in topics],
            source_ids=[each.source_id for each in topics],
            leader_epochs=[each.leader_epoch for each in topics],
            config_topics=[topic for topic, _, _ in configs],
            config_names=[name for _, name, _ in configs],
            config_values=[value for _, _, value in configs],
        )
        return _unless_stale(created, controller_epoch)

    async def grow_linked_topics(
        self, controller_epoch: int, expected_head: int, growths: Sequence[LinkedGrowth]
    ) -> bool:
        (grown,) = await _GROW_LINKED_TOPICS.row(
            self.pool,
            controller_epoch=controller_epoch,
            expected_head=expected_head,
            records=[
                record
                for each in growths
                for record in encode_new_partitions(
                    each.topic_id,
                    range(each.first_index, each.partition_count),
                    (),
                    leader_epoch=each.leader_epoch,
                )
            ],
            topic_ids=[each.topic_id for each in growths],
            first_indexes=[each.first_index for each in growths],
            counts=[each.partition_count for each in growths],
            leader_epochs=[each.leader_epoch for each in growths],
        )
        return _unless_stale(grown, controller_epoch)

    async def append_linked(
        self, token: JobToken, file: NewFile, runs: Sequence[LinkedRun], producers: Sequence[CopiedProducer]
    ) -> list[LinkedOutcome]:
        columns = np.array(list(runs), dtype=np.int64).reshape(-1, len(LinkedRun._fields)).T
        keys, bases, lasts, positions, lengths, leader_epochs, times = columns
        (outcomes,) = await _APPEND_LINKED.row(
            self.pool,
            job_id=token.job_id,
            epoch=token.epoch,
            file_id=file.file_id,
            size=file.size,
            body_bytes=file.body_bytes,
            key=pack_int8(keys),
            base=pack_int8(bases),
            last=pack_int8(lasts),
            position=pack_int8(positions),
            length=pack_int8(lengths),
            leader_epoch=pack_int4(leader_epochs),
            time=pack_int8(times),
            **_producer_columns(producers),
        )
        if outcomes is None:
            raise NotFoundError(f"file id cannot be used any more: file={file.file_id}")
        return [LinkedOutcome(outcome) for outcome in outcomes]

    async def add_copied_producers(self, token: JobToken, producers: Sequence[CopiedProducer]) -> list[bool]:
        if not producers:
            return []
        columns = {name.removeprefix("prod_"): values for name, values in _producer_columns(producers).items()}
        columns["producer_epoch"] = columns.pop("epoch")
        (added,) = await _ADD_COPIED_PRODUCERS.row(self.pool, job_id=token.job_id, epoch=token.epoch, **columns)
        return list(added)

    async def report_partitions(self, token: JobToken, reports: Sequence[PartitionReport]) -> None:
        reports = list(reports)
        await _REPORT_PARTITIONS.row(
            self.pool,
            job_id=token.job_id,
            epoch=token.epoch,
            key=[each.partition_key for each in reports],
            starts=[each.source_start for each in reports],
            ends=[each.source_end for each in reports],
            stables=[each.source_stable for each in reports],
            ready=[each.is_ready for each in reports],
            lost=[each.lost for each in reports],
            problems=[each.problem for each in reports],
        )

    async def promote_topics(
        self, controller_epoch: int, expected_head: int, topic_ids: Sequence[uuid.UUID], names: Sequence[str]
    ) -> bool:
        records: list[MetadataRecord] = [
            ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=name, name=LINK_NAME, value=None) for name in names
        ]
        (promoted,) = await _PROMOTE_TOPICS.row(
            self.pool,
            controller_epoch=controller_epoch,
            expected_head=expected_head,
            topic_ids=list(topic_ids),
            names=list(names),
            records=[encode_record(record) for record in records],
        )
        return _unless_stale(promoted, controller_epoch)


def _producer_columns(producers: Sequence[CopiedProducer]) -> dict[str, Any]:
    return {
        "prod_key": [each.partition_key for each in producers],
        "prod_id": [each.producer_id for each in producers],
        "prod_epoch": [each.epoch for each in producers],
        "prod_next": [each.next_sequence for each in producers],
        "prod_ring": [each.ring for each in producers],
    }


def _unless_stale(done: bool | None, controller_epoch: int) -> bool:
    if done is None:
        raise FencedError(f"controller epoch is stale: controller_epoch={controller_epoch}")
    return done
