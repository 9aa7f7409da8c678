"""A source that speaks the Kafka protocol: Apache Kafka 2.8 and later, Headrace.

Place: made by the jobs of links from a link's configs (`open_source`). One connection per broker, and requests of a
broker one after another, each on a thread of `threads`.
Invariant: no answer is larger than ANSWER_BYTES_MAX, none is waited for longer than ASK_SECONDS: a connection that
takes longer is ended, also if a byte comes now and then. After a failure of the first connection all
connections are made again.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from headrace.compactor.links.fetch_answers import FIRST_BY_ID, LAST, decode_fetch_answer, topic_of
from headrace.compactor.links.group_requests import fetch_offsets, list_groups
from headrace.compactor.links.source import (
    TEXT_CHARACTERS_MAX,
    FetchAnswer,
    GroupOffsets,
    SourceBounds,
    SourceGroup,
    SourceMetadata,
    SourcePosition,
    SourceProducer,
    TopicIndex,
)
from headrace.config.link_configs import BOOTSTRAP_SERVERS, CHECKS_NAME, DEFAULTS, SECRETS, is_reference
from headrace.config.load import resolved
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import ANY, KafkaCluster, require
from headrace.protocol.client.login import SETTINGS, Login
from headrace.protocol.client.messages import message
from headrace.protocol.client.transport import ClientConfig, parse_servers
from headrace.storage.errors import CorruptError, HeadraceError, InvalidError, UnavailableError

ASK_SECONDS = 40.0
"""The limit of one request with its answer; above what a single read of a connection waits."""
READ_MS = 30_000
ANSWER_BYTES_MAX = 64 * 1024 * 1024
TOPICS_PER_REQUEST = 500
CONFIG_CHARACTERS_MAX = 32_768
PATIENCE = datetime.timedelta(milliseconds=500)
"""How long a broker waits for MIN_BYTES."""
MIN_BYTES = 512 * 1024
"""A source of a few MB/s would answer each batch by itself, which costs both sides many times the CPU. Files are stored
only twice a second, so it makes a copy not much later.
"""
CLIENT_ID = "headrace-link"
EARLIEST, LATEST = -2, -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
CONSUMER = -1
TOPIC = 2
GIVEN_TO_THE_TOPIC = 1
"""The source of a config's value: a dynamic config of the topic."""
_LITERAL, _WRITE, _DENY = 3, 4, 2
MADE_HERE = 5
"""The version of the UUIDs that are made for topics of sources without topic ids; Kafka's are random."""
T = TypeVar("T")


def open_source(configs: Mapping[str, str], threads: Executor) -> KafkaSource:
    """The source of a link with these configs, in clear. ConfigError for what cannot be used. Connects later."""
    given = {name: _resolved(name, value) for name, value in configs.items() if value or name == CHECKS_NAME}
    login = Login.of({name: value for name, value in given.items() if name in SETTINGS})
    servers = parse_servers(given.get(BOOTSTRAP_SERVERS, DEFAULTS[BOOTSTRAP_SERVERS]))
    return KafkaSource(ClientConfig(servers, CLIENT_ID, READ_MS, login, ANSWER_BYTES_MAX), threads)


def _resolved(name: str, value: str) -> str:
    """A secret may name a variable; everything else is as it is written, also if the log has something else."""
    return str(resolved(value, os.environ)) if name in SECRETS and is_reference(value) else value


class KafkaSource:
    """Implements compactor.links.source.Source."""

    def __init__(self, config: ClientConfig, threads: Executor, ask_seconds: float = ASK_SECONDS) -> None:
        self._config, self._threads, self._ask_seconds = config, threads, ask_seconds
        self._cluster: KafkaCluster | None = None
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def metadata(self, names: Sequence[str] | None = None) -> SourceMetadata:
        answer = await self._ask(ANY, lambda cluster: cluster.whole_metadata(names))
        cluster_id = str(answer.cluster_id or "")
        if not 0 < len(cluster_id) <= TEXT_CHARACTERS_MAX:
            raise CorruptError("the source names no cluster id")
        topics = (topic_of(topic, cluster_id) for topic in answer.topics if topic.name)
        return SourceMetadata(cluster_id, {topic.name: topic for topic in topics if topic is not None})

    async def configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for first in range(0, len(names), TOPICS_PER_REQUEST):
            found |= await self._ask(ANY, partial(_configs, names=names[first : first + TOPICS_PER_REQUEST]))
        return found

    async def bounds(self, leader: int, partitions: Mapping[TopicIndex, int]) -> dict[TopicIndex, SourceBounds]:
        def ask(cluster: KafkaCluster) -> dict[TopicIndex, SourceBounds]:
            starts = _list_offsets(cluster, leader, partitions, EARLIEST, READ_UNCOMMITTED)
            stables = _list_offsets(cluster, leader, partitions, LATEST, READ_COMMITTED)  # before the ends: not above
            ends = _list_offsets(cluster, leader, partitions, LATEST, READ_UNCOMMITTED)
            nothing = (ErrorCode.unknown_server_error, -1)
            found = {}
            for each in partitions:
                start, end, stable = (answers.get(each, nothing) for answers in (starts, ends, stables))
                error = next((code for code, _ in (start, end, stable) if code is not ErrorCode.none), ErrorCode.none)
                found[each] = SourceBounds(start[1], end[1], stable[1], error)
                if error is ErrorCode.none:
                    found[each].check()
            return found

        return await self._ask(leader, ask)

    async def fetch(self, leader: int, positions: Sequence[SourcePosition], bytes_max: int) -> FetchAnswer:
        def ask(cluster: KafkaCluster) -> FetchAnswer:
            request = _fetch_request(cluster, positions, bytes_max)
            names = {each.topic_id: each.topic for each in positions}
            return decode_fetch_answer(cluster.ask_in_bytes(request, leader), request.__version__, names)

        return await self._ask(leader, ask)

    async def epoch_ends(self, leader: int, epochs: Mapping[TopicIndex, int]) -> dict[TopicIndex, int]:
        return await self._ask(leader, lambda cluster: _epoch_ends(cluster, leader, epochs))

    async def producers(self, leader: int, partitions: Iterable[TopicIndex]) -> dict[TopicIndex, list[SourceProducer]]:
        return await self._ask(leader, lambda cluster: _producers(cluster, leader, partitions))

    async def groups(self) -> list[SourceGroup]:
        nodes = await self._ask(ANY, lambda cluster: cluster.nodes())
        return [group for node in nodes for group in await self._ask(node, partial(list_groups, node=node))]

    async def group_offsets(self, coordinator: int, group_ids: Sequence[str]) -> dict[str, GroupOffsets]:
        return await self._ask(coordinator, lambda cluster: fetch_offsets(cluster, coordinator, group_ids))

    async def deny_writes(self, topic: str) -> None:
        await self._ask(ANY, lambda cluster: _deny_writes(cluster, topic))

    async def close(self) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.__exit__(None, None, None)

    async def _ask(self, node: int, work: Callable[[KafkaCluster], T]) -> T:
        """Return what `work` returns, on a thread. HeadraceError if it fails; UnavailableError if it takes too long."""
        async with self._turns[node]:
            cluster = self._cluster or await self._connected()
            try:
                return await self._on_thread(lambda: work(cluster), lambda: cluster.hang_up(node))
            except (UnavailableError, CorruptError):
                if node == ANY:
                    await self.close()
                raise

    async def _connected(self) -> KafkaCluster:
        """A new client that knows where the brokers are."""
        async with self._turns[-2]:
            if self._cluster is None:
                cluster = KafkaCluster(self._config, pause=lambda _: None)

                def connect() -> None:
                    with_any = cluster.__enter__()
                    with_any.whole_metadata(())

                try:
                    await self._on_thread(connect, lambda: cluster.hang_up(ANY))
                except BaseException:
                    cluster.__exit__(None, None, None)
                    raise
                self._cluster = cluster
            return self._cluster

    async def _on_thread(self, work: Callable[[], T], hang_up: Callable[[], None]) -> T:
        """Return what `work` returns; `hang_up` lets it end early."""
        working = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            async with asyncio.timeout(self._ask_seconds):
                return await asyncio.shield(working)
        except (TimeoutError, asyncio.CancelledError) as error:
            hang_up()
            working.add_done_callback(lambda done: done.cancelled() or done.exception())
            if isinstance(error, TimeoutError) and not working.done():
                raise UnavailableError(f"the source did not answer within {self._ask_seconds:.0f} s") from error
            if isinstance(error, TimeoutError):
                raise UnavailableError(f"the source did not answer: {error}") from error
            raise
        except HeadraceError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, OSError, OverflowError) as error:
            raise CorruptError(f"the source's answer cannot be used: {error!r}") from error


def _configs(cluster: KafkaCluster, names: Sequence[str]) -> dict[str, dict[str, str]]:
    m = cluster.message(ApiKey.DESCRIBE_CONFIGS)
    resources = tuple(
        m.make("DescribeConfigsResource", resource_type=TOPIC, resource_name=name, configuration_keys=None)
        for name in names
    )
    request = m.request(resources=resources, include_synonyms=False, include_documentation=False)
    answer = cluster.ask(ApiKey.DESCRIBE_CONFIGS, request)
    return {
        str(topic.resource_name): {
            str(config.name): str(config.value)
            for config in topic.configs
            if config.config_source == GIVEN_TO_THE_TOPIC
            and not config.is_sensitive
            and config.value is not None
            and len(config.value) <= CONFIG_CHARACTERS_MAX
        }
        for topic in answer.results
        if topic.error_code is ErrorCode.none and str(topic.resource_name) in names
    }


def _by_topic(partitions: Iterable[TopicIndex]) -> dict[str, list[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for topic, index in partitions:
        found[topic].append(index)
    return found


def _list_offsets(
    cluster: KafkaCluster, leader: int, partitions: Mapping[TopicIndex, int], timestamp: int, isolation: int
) -> dict[TopicIndex, tuple[ErrorCode, int]]:
    m = cluster.message(ApiKey.LIST_OFFSETS)
    topics = tuple(
        m.make(
            "ListOffsetsTopic",
            name=topic,
            partitions=tuple(
                m.make(
                    "ListOffsetsPartition",
                    partition_index=index,
                    current_leader_epoch=partitions[topic, index],
                    timestamp=timestamp,
                )
                for index in indexes
            ),
        )
        for topic, indexes in _by_topic(partitions).items()
    )
    request = m.request(
        replica_id=CONSUMER,
        isolation_level=isolation,
        topics=topics,
        timeout=datetime.timedelta(milliseconds=READ_MS),
    )
    answer = cluster.ask(ApiKey.LIST_OFFSETS, request, leader)
    return {
        (str(topic.name), int(each.partition_index)): (each.error_code, int(each.offset))
        for topic in answer.topics
        for each in topic.partitions
    }


def _fetch_request(cluster: KafkaCluster, positions: Sequence[SourcePosition], bytes_max: int) -> Any:
    m = cluster.message(ApiKey.FETCH)
    by_id = cluster.newest(ApiKey.FETCH, LAST) if all(each.topic_id.version != MADE_HERE for each in positions) else 0
    if by_id >= FIRST_BY_ID:
        m = message(ApiKey.FETCH, by_id)
    by_topic: defaultdict[tuple[str, uuid.UUID], list[Any]] = defaultdict(list)
    for each in positions:
        by_topic[each.topic, each.topic_id].append(
            m.make(
                "FetchPartition",
                partition=each.partition,
                current_leader_epoch=each.leader_epoch,
                fetch_offset=each.offset,
                last_fetched_epoch=each.last_epoch,
                log_start_offset=-1,
                partition_max_bytes=each.bytes_max,
            )
        )
    return m.request(
        replica_id=CONSUMER,
        max_wait=PATIENCE,
        min_bytes=MIN_BYTES,
        max_bytes=bytes_max,
        isolation_level=READ_COMMITTED,
        session_id=0,
        session_epoch=-1,
        topics=tuple(
            m.make("FetchTopic", topic=topic, topic_id=topic_id, partitions=tuple(each))
            for (topic, topic_id), each in by_topic.items()
        ),
        forgotten_topics_data=(),
        rack_id="",
    )


def _epoch_ends(cluster: KafkaCluster, leader: int, epochs: Mapping[TopicIndex, int]) -> dict[TopicIndex, int]:
    m = cluster.message(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    topics = tuple(
        m.make(
            "OffsetForLeaderTopic",
            topic=topic,
            partitions=tuple(
                m.make(
                    "OffsetForLeaderPartition",
                    partition=index,
                    current_leader_epoch=-1,
                    leader_epoch=epochs[topic, index],
                )
                for index in indexes
            ),
        )
        for topic, indexes in _by_topic(epochs).items()
    )
    answer = cluster.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, m.request(replica_id=CONSUMER, topics=topics), leader)
    return {
        (str(topic.topic), int(each.partition)): int(each.end_offset) if each.error_code is ErrorCode.none else -1
        for topic in answer.topics
        for each in topic.partitions
    }


def _producers(
    cluster: KafkaCluster, leader: int, partitions: Iterable[TopicIndex]
) -> dict[TopicIndex, list[SourceProducer]]:
    m = cluster.message(ApiKey.DESCRIBE_PRODUCERS)
    topics = tuple(
        m.make("TopicRequest", name=topic, partition_indexes=tuple(indexes))
        for topic, indexes in _by_topic(partitions).items()
    )
    answer = cluster.ask(ApiKey.DESCRIBE_PRODUCERS, m.request(topics=topics), leader)
    return {
        (str(topic.name), int(each.partition_index)): [
            SourceProducer(
                int(producer.producer_id),
                int(producer.producer_epoch),
                int(producer.last_sequence),
                int(producer.last_timestamp),
                int(producer.current_txn_start_offset),
            )
            for producer in each.active_producers
        ]
        for topic in answer.topics
        for each in topic.partitions
        if each.error_code is ErrorCode.none
    }


def _deny_writes(cluster: KafkaCluster, topic: str) -> None:
    m = cluster.message(ApiKey.CREATE_ACLS)
    denial = m.make(
        "AclCreation",
        resource_type=TOPIC,
        resource_name=topic,
        resource_pattern_type=_LITERAL,
        principal="User:*",
        host="*",
        operation=_WRITE,
        permission_type=_DENY,
    )
    cluster.whole_metadata(())
    answer = cluster.ask(ApiKey.CREATE_ACLS, m.request(creations=(denial,)), cluster.controller)
    for result in answer.results:
        if result.error_code is ErrorCode.security_disabled:
            raise InvalidError("the source has no authorizer: it cannot deny writes")
        require(result.error_code, result.error_message, topic)
