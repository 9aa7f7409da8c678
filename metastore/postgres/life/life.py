"""Implements LifeApi: what this server says of the metastore's life, and the beginning of another one.

Place: under metastore/life; the life that writing calls name is the pool's (statement.py).
Invariant: a life begins in one statement, under a lock that every writing call shares, and with the metadata image of
exactly the log that it replaces.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from types import MappingProxyType

from headrace.metastore.api.agents import METADATA_FORMAT, SUPPORTED_FEATURES
from headrace.metastore.api.life import LifeApi, Server, ServerLife
from headrace.metastore.life.numbers import epoch_floor, log_floor
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.kip631_records import FeatureLevelRecord
from headrace.metastore.log.records import encode_record
from headrace.metastore.log.snapshot import encode_snapshot, load_image
from headrace.metastore.postgres.cluster.cluster import PostgresMetadataLog
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement

BEGIN_SECONDS = 300.0
"""A million partitions take some ten seconds: each gets a leader epoch."""

DESCRIBE_LIFE = Statement("describe_life", writes=False)
_BEGIN_LIFE = Statement("begin_life", writes=True, in_any_life=True, patience_seconds=BEGIN_SECONDS)


class PostgresLife(PostgresNoun):
    """Implements LifeApi."""

    prepare_life = calls(LifeApi.prepare_life, "prepare_unspent_life", writes=True, in_any_life=True)
    record_database = calls(LifeApi.record_database, writes=True, in_any_life=True)

    @property
    def named_life(self) -> int:
        return self.pool.life

    def name_life(self, life: int) -> None:
        self.pool.life = life

    def leave_connections(self) -> None:
        for pool in (self.pool, self.readers):
            pool.is_left = True

    async def describe_life(self) -> ServerLife:
        cluster_id, life, incarnation_id, *found = await DESCRIBE_LIFE.row(self.pool)
        return ServerLife(cluster_id, life, incarnation_id, Server(*found[:3]), Server(*found[3:6]), *found[6:])

    async def begin_life(self, life: int, incarnation_id: uuid.UUID) -> bool:
        image = await load_image(PostgresMetadataLog(self.at))
        snapshot = await asyncio.to_thread(encode_snapshot, reborn(image, life))
        (begun,) = await _BEGIN_LIFE.row(
            self.pool,
            life=life,
            incarnation_id=incarnation_id,
            expected_head=image.offset,
            snapshot=snapshot,
            last_record=_format_record(image),
        )
        return bool(begun)


def reborn(image: MetadataImage, life: int) -> MetadataImage:
    """The image with which a life begins: at the life's first offset, no leader epoch below the life's first, and each
    higher than before: those of linked topics are above every life's (metastore/api/links.py).
    """
    topics = {topic_id: _with_floor(topic, epoch_floor(life)) for topic_id, topic in image.topics_by_id.items()}
    return replace(
        image,
        offset=log_floor(life),
        topics_by_id=MappingProxyType(topics),
        topics_by_name=MappingProxyType({topic.name: topic for topic in topics.values()}),
        topics_by_number=MappingProxyType({topic.topic_number: topic for topic in topics.values()}),
    )


def _with_floor(topic: TopicImage, floor: int) -> TopicImage:
    raised = tuple(floor if epoch < floor else epoch + 1 for epoch in topic.leader_epochs)
    return replace(topic, leader_epochs=raised)


def _format_record(image: MetadataImage) -> bytes:
    """A record that changes nothing: the level of metadata.format that holds already."""
    levels = image.features.get(METADATA_FORMAT, SUPPORTED_FEATURES[METADATA_FORMAT])
    return encode_record(
        FeatureLevelRecord(name=METADATA_FORMAT, min_feature_level=levels.min_level, max_feature_level=levels.max_level)
    )
