"""The read path with everything around it in memory: a bucket, the model metastore, a manual clock.

Fault model: `FaultyStore` loses, cuts and alters objects and counts reads; `FeedGate` keeps feed
pages back, loses rows and shards, or fails. The model metastore itself never fails.
Requests are written and replies read by kio, so every exchange crosses the real wire format.
"""

from __future__ import annotations

import datetime
import io
import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from kio.serial import entity_reader, entity_writer
from prometheus_client import CollectorRegistry

from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.cluster.zone import ZoneTraffic
from headrace.agent.fetch.service import FetchService, FetchSurroundings
from headrace.config.settings import Settings
from headrace.metastore.api.commit import BatchOutcome, FileCommit, StagedBatch
from headrace.metastore.api.compaction import FoundDamage
from headrace.metastore.api.read import (
    ALL_BYTES,
    EpochEnd,
    EpochQuery,
    ExtentQuery,
    FeedPage,
    OffsetAnswer,
    OffsetQuery,
    PartitionExtents,
)
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.image import TopicImage
from headrace.protocol import typed
from headrace.protocol.request import ClientConnection, Request
from headrace.storage.errors import HeadraceError
from headrace.storage.file_id import new_file_id, object_key
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ByteRange
from headrace.storage.records.header import read_header
from headrace.storage.segment.writer import SegmentWriter
from load.contexts import a_context
from tests.agent.cluster.standing_view import StandingView
from tests.manual_clock import ManualClock, T
from tests.model.metastore_model import ModelMetastore
from tests.nouns import nouns
from tests.storage.batches import plain_batch

NODE_ID, BROKER_EPOCH = 1, 10
NEVER_SEEN = {"producer_id": 999, "producer_epoch": 0, "base_sequence": 5}
"""Header fields of a batch that the commit drops: it stays in the file and is in no extent."""


class Live(NamedTuple):
    """A batch that readers must see, under the offsets that the commit gave it."""

    base_offset: int
    last_offset: int
    stored: bytes

    def sent(self, leader_epoch: int = 0) -> bytes:
        """Return how it must look on the wire."""
        return (
            self.base_offset.to_bytes(8, "big") + self.stored[8:12] + leader_epoch.to_bytes(4, "big") + self.stored[16:]
        )


class FaultyStore(MemoryStore):
    """Counts GETs; can lose, cut or alter what it holds, hold GETs back (`before_get`), and answer at once."""

    def __init__(self) -> None:
        super().__init__()
        self.gets: list[tuple[str, ByteRange | None]] = []
        self.before_get: Callable[[str], Awaitable[None]] | None = None
        self.answers_at_once: Callable[[], bool] = lambda: False
        self.at_once: list[ByteRange] = []
        """What was answered so."""

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        self.gets.append((key, byte_range))
        if self.before_get is not None:
            await self.before_get(key)
        return await super().get(key, byte_range)

    def get_at_once(self, key: str, byte_range: ByteRange) -> memoryview | None:
        stored = self._objects.get(key)
        end = byte_range.start + byte_range.length
        if stored is None or end > len(stored.body) or not self.answers_at_once():
            return None
        self.at_once.append(byte_range)
        return memoryview(stored.body)[byte_range.start : end]

    async def rewrite(self, key: str, change: Callable[[bytes], bytes | None]) -> None:
        """Replace an object's bytes, or lose it when `change` returns None."""
        body = await super().get(key)
        changed = change(body)
        if changed is None:
            await self.delete_many([key])
        else:
            await self.put(key, changed)


class FeedGate:
    """IndexApi over the model with a feed that a test can disturb; counts every query."""

    def __init__(self, model: ModelMetastore) -> None:
        self.model = model
        self.asked: Counter[str] = Counter()
        self.fail: HeadraceError | None = None
        self.noted: list[FoundDamage] = []
        self.change_page: Callable[[FeedPage], FeedPage] = lambda page: page

    async def find_extents(self, queries: Sequence[ExtentQuery], max_bytes: int = ALL_BYTES) -> list[PartitionExtents]:
        return await self._ask("find_extents", lambda: self.model.find_extents(queries, max_bytes))

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        return await self._ask("list_offsets", lambda: self.model.list_offsets(queries))

    async def find_epoch_ends(self, queries: Sequence[EpochQuery]) -> list[EpochEnd]:
        return await self._ask("find_epoch_ends", lambda: self.model.find_epoch_ends(queries))

    async def poll_feed(self, positions: Mapping[int, int]) -> FeedPage:
        return self.change_page(await self._ask("poll_feed", lambda: self.model.poll_feed(positions)))

    async def note_damage(self, found: Sequence[FoundDamage]) -> None:
        if self.fail is not None:
            raise self.fail
        self.noted += found

    async def _ask(self, name: str, question: Callable[[], Awaitable[T]]) -> T:
        self.asked[name] += 1
        if self.fail is not None:
            raise self.fail
        return await question()


class World:
    """`write` and `fetch` are what tests do; `live` is what they compare with."""

    def __init__(
        self,
        *,
        seed: int = 0,
        shards: int = 4,
        cache_bytes: int = 64 * 1024 * 1024,
        authorizer: str = "",
        bucket: str = "file:///bucket",
    ) -> None:
        """`bucket`: read ahead is for S3; the objects are in memory in any case."""
        self.clock = ManualClock()
        self.rng = random.Random(seed)
        self.store = FaultyStore()
        self.registry = CollectorRegistry()
        self.model = ModelMetastore(self.clock, shards=shards)
        self.model.register_agent(NODE_ID, BROKER_EPOCH)
        self.metastore = FeedGate(self.model)
        self.view = StandingView(shards, node_id=NODE_ID, broker_epoch=BROKER_EPOCH)
        self.settings = Settings(cache_bytes=cache_bytes, authorizer_class_name=authorizer, bucket=bucket)
        self.authorizer = Authorizer(self.settings, self.view)
        self.metadata_moves = 0
        self.sent_counts: list[tuple[int, int, int]] = []
        """Partition key, bytes and records of each partition of an answer."""
        """Damage that agents have recorded."""
        self.live: dict[int, list[Live]] = {}
        self.names: dict[int, str] = {}
        self.connection = ClientConnection(1, "test")
        """By which the tests' requests come."""
        self.service = self.new_service(self.registry)

    def new_service(self, registry: CollectorRegistry | None = None) -> FetchService:
        """Another agent on the same bucket and metastore."""
        context = a_context(
            nouns(self.metastore),
            self.clock,
            store=self.store,
            settings=self.settings,
            rng=self.rng,
            registry=registry,
        )
        around = FetchSurroundings(
            on_metadata_moved=self._count_move,
            traffic=ZoneTraffic(self.settings.broker_rack, context.registry),
            authorizer=self.authorizer.enforced,
            count_sent=lambda *counted: self.sent_counts.append(counted),
        )
        return FetchService(context, self.view, around)

    def metric(self, name: str, **labels: str) -> float:
        """A sample of the agent under test; 0 when it was never counted."""
        return self.registry.get_sample_value(f"headrace_fetch_{name}", labels) or 0.0

    def _count_move(self, metadata_offset: int) -> None:
        self.metadata_moves += 1

    def create_topic(self, name: str, partitions: int, *, seen: bool = True) -> list[int]:
        """Partition keys by index. With `seen` False the agent's image learns of it only by catching up."""
        number = self.view.head.offset + 1
        topic = TopicImage(uuid.UUID(int=number << 64), number, name, partitions, partitions, (0,) * partitions)
        self._set_topic(topic)
        if seen:
            self.view.image = self.view.head
        self.names[number] = name
        keys = self.model.create_topic(number, partitions)
        self.live.update((key, []) for key in keys)
        return keys

    def raise_leader_epochs(self, name: str, leader_epoch: int) -> None:
        """Raise the leader epochs in the image that the agent has."""
        topic = self.view.head.topics_by_name[name]
        self._set_topic(replace(topic, leader_epochs=(leader_epoch,) * len(topic.leader_epochs)))
        self.view.image = self.view.head

    def _set_topic(self, topic: TopicImage) -> None:
        head = self.view.head
        self.view.head = replace(
            head,
            offset=head.offset + 1,
            topics_by_name=MappingProxyType({**head.topics_by_name, topic.name: topic}),
            topics_by_id=MappingProxyType({**head.topics_by_id, topic.topic_id: topic}),
            topics_by_number=MappingProxyType({**head.topics_by_number, topic.topic_number: topic}),
        )

    async def write(self, batches: Sequence[tuple[int, bytes]], *, own: bool = False) -> uuid.UUID:
        """Store and commit one file with (partition key, batch) in it; `own`: by the agent under test."""
        writer = SegmentWriter()
        staged = []
        ordered = sorted(batches, key=lambda item: item[0])
        for key, batch in ordered:
            number, index = split_partition_key(key)
            header = read_header(batch)
            position = writer.add(uuid.UUID(int=number << 64), index, key, memoryview(batch), header)
            producer = (header.producer_id, header.producer_epoch, header.base_sequence)
            count, epoch = header.last_offset_delta + 1, self.model.partitions[key].leader_epoch
            staged.append(StagedBatch(key, position, len(batch), count, header.highest_timestamp, *producer, epoch))
        data = writer.finish()
        file_id = new_file_id(self.clock.wall_ms(), self.rng)
        await self.store.put(object_key(file_id), data)
        commit = FileCommit(file_id, len(data), staged)
        with self.service.committing([commit]) if own else nullcontext():
            (answer,) = await self.model.commit_files(NODE_ID, BROKER_EPOCH, [commit])
        for (key, batch), verdict in zip(ordered, answer.batches, strict=True):
            if verdict.outcome is BatchOutcome.APPENDED:
                last = verdict.base_offset + read_header(batch).last_offset_delta
                self.live[key].append(Live(verdict.base_offset, last, batch))
        if own:
            self.service.on_flushed(file_id, data)
            self.service.on_committed([commit], [answer])
        return file_id

    async def append(self, key: int, *values: bytes, own: bool = False) -> uuid.UUID:
        """One file with one single-record batch per value."""
        return await self.write([(key, plain_batch(1, value)) for value in values], own=own)

    async def fetch(self, offsets: Mapping[int, int], **options: Any) -> FetchResult:
        """Fetch from {partition key: offset}; see `request_fetch` for options."""
        return await self.clock.run(self.request_fetch(offsets, **options))

    async def request_fetch(
        self,
        offsets: Mapping[int, int],
        *,
        version: int = 17,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 50_000_000,
        partition_max_bytes: int = 1_048_576,
        leader_epoch: int = -1,
        isolation_level: int = 0,
        session_id: int = 0,
        session_epoch: int = -1,
        forget: Sequence[int] = (),
        rack_id: str = "",
        service: FetchService | None = None,
    ) -> FetchResult:
        """The same without moving the clock."""
        schema = typed.schema(1, version)
        module = __import__(schema.request_type.__module__, fromlist=["FetchRequest"])
        topics = [
            self._named(
                module.FetchTopic,
                key,
                partitions=(
                    make(
                        module.FetchPartition,
                        partition=split_partition_key(key)[1],
                        current_leader_epoch=leader_epoch,
                        fetch_offset=offset,
                        partition_max_bytes=partition_max_bytes,
                        log_start_offset=-1,
                    ),
                ),
            )
            for key, offset in offsets.items()
        ]
        forgotten = [
            self._named(module.ForgottenTopic, key, partitions=(split_partition_key(key)[1],)) for key in forget
        ]
        entity = make(
            module.FetchRequest,
            replica_id=-1,
            max_wait=datetime.timedelta(milliseconds=max_wait_ms),
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            session_id=session_id,
            session_epoch=session_epoch,
            topics=tuple(topics),
            forgotten_topics_data=tuple(forgotten),
            rack_id=rack_id,
        )
        reply = await self.exchange(1, version, entity, (service or self.service).handle_fetch)
        return FetchResult(reply, self)

    async def list_offsets(
        self,
        timestamps: Sequence[tuple[str, int, int]],
        *,
        version: int = 11,
        leader_epoch: int = -1,
        isolation_level: int = 0,
    ) -> list[Any]:
        """The partition responses to (topic, index, timestamp), in order."""
        return await self.clock.run(
            self.request_offsets(
                timestamps, version=version, leader_epoch=leader_epoch, isolation_level=isolation_level
            )
        )

    async def request_offsets(
        self,
        timestamps: Sequence[tuple[str, int, int]],
        *,
        version: int = 11,
        leader_epoch: int = -1,
        isolation_level: int = 0,
    ) -> list[Any]:
        """The same without moving the clock."""
        schema = typed.schema(2, version)
        module = __import__(schema.request_type.__module__, fromlist=["ListOffsetsRequest"])
        topics = tuple(
            make(
                module.ListOffsetsTopic,
                name=name,
                partitions=(
                    make(
                        module.ListOffsetsPartition,
                        partition_index=index,
                        current_leader_epoch=leader_epoch,
                        timestamp=timestamp,
                    ),
                ),
            )
            for name, index, timestamp in timestamps
        )
        entity = make(
            module.ListOffsetsRequest,
            replica_id=-1,
            isolation_level=isolation_level,
            topics=topics,
            timeout=datetime.timedelta(0),
        )
        reply = await self.exchange(2, version, entity, self.service.handle_list_offsets)
        return [partition for topic in reply.topics for partition in topic.partitions]

    async def exchange(self, api_key: int, version: int, entity: Any, handle: Callable[[Request], Any]) -> Any:
        """The response entity to a request entity, over the wire format both ways."""
        schema = typed.schema(api_key, version)
        body = io.BytesIO()
        entity_writer(schema.request_type)(body, entity)
        view = memoryview(body.getvalue())
        request = Request(self.connection, api_key, version, 77, "test", view, self.clock.monotonic())
        response = await handle(request)
        frame = b"".join(response.buffers)
        header_bytes = 5 if schema.flexible else 4
        assert frame[:4] == (77).to_bytes(4, "big")
        reply, consumed = entity_reader(schema.response_type)(frame, header_bytes)
        assert header_bytes + consumed == len(frame)
        return reply

    def name(self, key: int) -> str:
        return self.names[split_partition_key(key)[0]]

    def _named(self, cls: type, key: int, **values: Any) -> Any:
        number, _ = split_partition_key(key)
        return make(cls, topic=self.names[number], topic_id=uuid.UUID(int=number << 64), **values)


class FetchResult:
    """A Fetch response by partition key."""

    def __init__(self, reply: Any, world: World) -> None:
        self.error = int(reply.error_code) if hasattr(reply, "error_code") else 0
        self.session_id = getattr(reply, "session_id", 0)
        numbers = {name: number for number, name in world.names.items()}
        self.partitions: dict[int, Any] = {}
        for topic in reply.responses:
            topic_id = getattr(topic, "topic_id", None)
            number = topic_id.int >> 64 if topic_id else numbers[topic.topic]
            for partition in topic.partitions:
                self.partitions[number << 24 | partition.partition_index] = partition

    def records(self, key: int) -> bytes:
        return bytes(self.partitions[key].records)

    def code(self, key: int) -> int:
        return int(self.partitions[key].error_code)

    @property
    def size(self) -> int:
        return sum(len(partition.records) for partition in self.partitions.values())


def make(cls: type, **values: Any) -> Any:
    """A kio entity; values that its version lacks are left out."""
    known = {field.name for field in fields(cls)}
    return cls(**{name: value for name, value in values.items() if name in known})


def expected(live: Sequence[Live], offset: int) -> list[bytes]:
    """Every batch from the one that holds `offset` on, as it must be sent."""
    return [batch.sent() for batch in live if batch.last_offset >= offset]


def split_sent(records: bytes) -> list[bytes]:
    """The batches of a reply, which must all be whole."""
    batches, position = [], 0
    while position < len(records):
        size = read_header(records, position).size
        assert position + size <= len(records), "a batch was cut"
        batches.append(records[position : position + size])
        position += size
    return batches
