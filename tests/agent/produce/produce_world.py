"""The write path on a bench: a real pipeline between a memory store and the model metastore.

Fault model: none by itself. `store` and `metastore` may be wrapped before `start`; time is a
ManualClock's, so nothing waits for real.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self

from kio.serial import entity_reader
from prometheus_client import CollectorRegistry

from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.listener.host import ProduceBytes
from headrace.agent.produce.callbacks import Callbacks
from headrace.agent.produce.files import FileTrace
from headrace.agent.produce.pipeline import ProducePipeline
from headrace.config.settings import Settings
from headrace.metastore.api.commit import FileAnswer, FileCommit
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.protocol import wire
from headrace.protocol.produce_codec import FIRST_BY_ID, FIRST_FLEXIBLE
from headrace.protocol.request import ClientConnection, GivenProducer, Request, RequestSender, Response, UncountedSender
from headrace.protocol.typed import schema
from headrace.storage.file_id import object_key
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ByteRange
from headrace.storage.records.header import read_header
from load.contexts import a_context
from tests.agent.cluster.standing_view import StandingView
from tests.manual_clock import ManualClock
from tests.model.metastore_model import ModelMetastore
from tests.nouns import nouns

NODE_ID = 1
EPOCH = 7

Batches = Mapping[str | uuid.UUID, Mapping[int, bytes]]
"""Topic name or id -> partition -> record bytes."""


class Answer(NamedTuple):
    """What a client reads for one partition."""

    error: str
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    message: str | None
    record_errors: tuple[tuple[int, str | None], ...] = ()
    """(index in the batch, message)."""


class StoredBatch(NamedTuple):
    """A batch that readers see."""

    base_offset: int
    data: bytes


class ProduceWorld:
    """Use as `async with`; topics are made with `create_topic`."""

    def __init__(self, *, seed: int = 0, clock: ManualClock | None = None, **settings: Any) -> None:
        self.clock = clock or ManualClock()
        self.rng = random.Random(seed)
        self.bucket = MemoryStore(self.clock)
        self.model = ModelMetastore(self.clock)
        self.model.register_agent(NODE_ID, EPOCH)
        self.store: Any = self.bucket
        self.metastore: Any = self.model
        self.view = StandingView(4, node_id=NODE_ID, broker_epoch=EPOCH)
        # early flushes and joining have separate tests (test_flusher.py, test_join.py)
        self.settings = Settings(**{"ingest_merge_max_bytes": 0, "flush_early_per_second": 0, **settings})
        self.authorizer = Authorizer(self.settings, self.view)
        self.produce_bytes: ProduceBytes | None = None
        """What a listener would see of requests before they are whole."""
        self.registry = CollectorRegistry()
        self.count_received: Callable[[int, int, int], None] = lambda partition_key, size_bytes, records: None
        self.sender: RequestSender = UncountedSender()
        self.traces: list[FileTrace] = []
        self.flushed: list[uuid.UUID] = []
        self.committed_calls = 0
        self.fenced_calls = 0
        self.on_fenced: Callable[[], None] | None = None
        self._connections = 0
        self._requests = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.pipeline.close()

    async def start(self) -> None:
        """Compose and start the pipeline on the current `store` and `metastore`."""
        self.compose()
        await self.pipeline.start()

    def compose(self) -> None:
        """Make the pipeline, not started yet."""
        self.pipeline = ProducePipeline(
            a_context(
                nouns(self.metastore),
                self.clock,
                store=self.store,
                settings=self.settings,
                rng=self.rng,
                registry=self.registry,
            ),
            self.view,
            Callbacks(
                database_now_ms=self.clock.wall_ms,
                on_flushed=lambda file_id, body: self.flushed.append(file_id),
                on_committed=self._on_committed,
                on_fenced=self._on_fenced,
                on_settled=self.traces.append,
                log_start_offset=self._log_start_offset,
                count_received=self.count_received,
            ),
            self.produce_bytes,
            self.authorizer.enforced,
        )

    def create_topic(self, name: str, partitions: int = 1, *, known: bool = True, **configs: str) -> TopicImage:
        """A topic in the metastore and at the log's head; the agent knows it at once unless `known` is False."""
        number = 100 + len(self.view.head.topics_by_name)
        self.model.create_topic(number, partitions)
        topic = TopicImage(uuid.UUID(int=number), number, name, partitions, partitions, (0,) * partitions)
        self.put_topic(topic, {name.replace("_", "."): value for name, value in configs.items()})
        if known:
            self.view.image = self.view.head
        return topic

    def put_topic(self, topic: TopicImage, configs: Mapping[str, str] | None = None) -> None:
        """The log's head with this topic added or replaced."""
        head = self.view.head
        self.view.head = MetadataImage(
            offset=max(head.offset + 1, self.model.metadata_offset),
            topics_by_name=MappingProxyType({**head.topics_by_name, topic.name: topic}),
            topics_by_id=MappingProxyType({**head.topics_by_id, topic.topic_id: topic}),
            topics_by_number=MappingProxyType({**head.topics_by_number, topic.topic_number: topic}),
            configs=head.configs if configs is None else {**head.configs, (2, topic.name): configs},
            access_controls=head.access_controls,
            agents=head.agents,
            moved_at=head.moved_at,
        )

    def connect(self, producer_id: int | None = None) -> ClientConnection:
        """A new connection; `producer_id` was given out over it."""
        self._connections += 1
        given = None if producer_id is None else GivenProducer((producer_id, 0), self.view.image.offset)
        return ClientConnection(self._connections, f"127.0.0.1:{self._connections}", given=given)

    async def produce(
        self,
        connection: ClientConnection,
        batches: Batches,
        *,
        version: int = 9,
        acks: int = -1,
        timeout_ms: int = 30_000,
        transactional_id: str | None = None,
    ) -> dict[tuple[str | uuid.UUID, int], Answer] | None:
        """Send one request; its answers by (topic, partition), None when there was no response."""
        request = self.request(connection, _encode(batches, version, acks, timeout_ms, transactional_id), version)
        response = await self.pipeline.handle(request)
        if response.buffers is None:
            return None
        return _decode(b"".join(response.buffers), version, request.correlation_id)

    async def answers(self, batches: Batches, **options: Any) -> dict[tuple[str | uuid.UUID, int], Answer]:
        """Send one request on a new connection, and let time pass until it is answered."""
        found = await self.clock.run(self.produce(self.connect(), batches, **options))
        assert found is not None
        return found

    def begin(self, connection: ClientConnection, batches: Batches) -> Awaitable[Response]:
        """Return what the listener gets for one request: a Promise, or a coroutine that is not started yet."""
        return self.pipeline.handle(self.request(connection, _encode(batches, 9, -1, 30_000, None)))

    def request(self, connection: ClientConnection, body: bytes, version: int = 9) -> Request:
        """Return what the listener makes of a Produce frame."""
        self._requests += 1
        return Request(
            connection=connection,
            api_key=0,
            api_version=version,
            correlation_id=self._requests,
            client_id="bench",
            body=memoryview(body),
            received_at=self.clock.monotonic(),
            sender=self.sender,
        )

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"headrace_produce_{name}", labels) or 0.0

    async def log_of(self, key: int) -> list[StoredBatch]:
        """Return what readers of a partition see, from the bucket's own bytes."""
        batches = []
        for extent in self.model.partitions[key].extents:
            data = await self.bucket.get(object_key(extent.source), ByteRange(extent.position, extent.length))
            offset, position = extent.base_offset, 0
            while position < len(data):
                header = read_header(data, position)
                batches.append(StoredBatch(offset, data[position : position + header.size]))
                offset, position = offset + header.record_count, position + header.size
            assert offset == extent.last_offset + 1
        return batches

    def _log_start_offset(self, key: int) -> int:
        partition = self.model.partitions.get(key)
        return partition.log_start_offset if partition else -1

    def _on_committed(self, commits: Sequence[FileCommit], answers: Sequence[FileAnswer]) -> None:
        assert [commit.file_id for commit in commits] == [answer.file_id for answer in answers]
        self.committed_calls += 1

    def _on_fenced(self) -> None:
        self.fenced_calls += 1
        if self.on_fenced:
            self.on_fenced()


def _encode(batches: Batches, version: int, acks: int, timeout_ms: int, transactional_id: str | None) -> bytes:
    flexible = version >= FIRST_FLEXIBLE
    tags = wire.EMPTY_TAGS if flexible else b""
    parts = [wire.string(transactional_id, flexible) if version >= 3 else b""]
    parts += [wire.INT16.pack(acks), wire.INT32.pack(timeout_ms), wire.size_prefix(len(batches), flexible)]
    for topic, partitions in batches.items():
        name, topic_id = (topic, None) if isinstance(topic, str) else (None, topic)
        parts.append(wire.topic_reference(name, topic_id, flexible, version >= FIRST_BY_ID))
        parts.append(wire.size_prefix(len(partitions), flexible))
        for index, data in partitions.items():
            parts += [wire.INT32.pack(index), wire.size_prefix(len(data), flexible), data, tags]
        parts.append(tags)
    return b"".join([*parts, tags])


def _decode(frame: bytes, version: int, correlation_id: int) -> dict[tuple[str | uuid.UUID, int], Answer]:
    """Read with kio's generated schema: an independent reading of the response's bytes."""
    assert int.from_bytes(frame[:4], "big") == correlation_id
    kind = schema(0, version).response_type
    entity, consumed = entity_reader(kind)(frame, 5 if version >= FIRST_FLEXIBLE else 4)
    assert consumed + (5 if version >= FIRST_FLEXIBLE else 4) == len(frame)
    answers = {}
    for topic in entity.responses:
        for partition in topic.partition_responses:
            named = topic.topic_id if version >= FIRST_BY_ID else topic.name
            answers[named, partition.index] = Answer(
                partition.error_code.name,
                partition.base_offset,
                _milliseconds(partition.log_append_time),
                getattr(partition, "log_start_offset", -1),
                getattr(partition, "error_message", None),
                tuple((e.batch_index, e.batch_index_error_message) for e in getattr(partition, "record_errors", ())),
            )
    return answers


def _milliseconds(moment: Any) -> int:
    return -1 if moment is None else round(moment.timestamp() * 1000)
