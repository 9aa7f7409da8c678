"""The composed read path: the interface for the rest of the agent.

Place: the agent's process registers `handle_fetch` and `handle_list_offsets` with the dispatcher; the write path
calls `on_flushed` and `on_committed`, and takes creation times of files from `database_now_ms`. The owner of a share
group sees the logs by LogEndsOfIndex: it implements ShareLogs (agent/groups/share/group_partitions.py), and
agent/serve/paths.py passes it on, because groups and fetch do not import each other. FetchSteps are the parts of the
read path that can be traced: the parts themselves, or ones that also report their times
(agent/serve/tracing/spans.py).
Invariant: nothing is served before the first poll of the feed; nothing runs after `close`. An end of a log is one
that this agent's index or the primary has, so every offset below it is committed. UNTRACED are the plain parts: then
the read path calls nothing else.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from kio.schema.errors import ErrorCode

from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.cluster.shared_address import SharedAddress, virtual_node
from headrace.agent.cluster.view import ClusterView
from headrace.agent.cluster.zone import Path, ZoneTraffic
from headrace.agent.fetch.deliver import Delivery
from headrace.agent.fetch.files.cache import ChunkCache
from headrace.agent.fetch.files.damage import Damage
from headrace.agent.fetch.files.read import RangeReader, ReadTurns
from headrace.agent.fetch.files.read_ahead import read_ahead
from headrace.agent.fetch.files.seek import Seeker
from headrace.agent.fetch.files.start_points import FileIndex, ResumeHints
from headrace.agent.fetch.handler import AwaitedLog, FetchClients, FetchHandler
from headrace.agent.fetch.index.feed import FeedFollower, FollowedTail
from headrace.agent.fetch.index.followed_shards import FollowedShards
from headrace.agent.fetch.index.index import TailIndex
from headrace.agent.fetch.index.own_commits import AcknowledgedEnds
from headrace.agent.fetch.index.shard_interest import FOLLOW_POLICY, FollowPolicy
from headrace.agent.fetch.index.tail import LookupStatus
from headrace.agent.fetch.locate import Locator
from headrace.agent.fetch.loss_notes import DamageNotes, ForgottenExtents
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.offsets.offset_requests import ListOffsetsHandler
from headrace.agent.fetch.offsets.timestamps import TimestampSearch
from headrace.agent.fetch.rendered_topics import rendered_topics
from headrace.agent.fetch.sessions import AllowedTopics, FetchSessions
from headrace.agent.fetch.share.deliver import ShareReader
from headrace.agent.fetch.waiters import Waiter, Waiters
from headrace.agent.fetch.zone_cache.serving import ZoneCache
from headrace.agent.peers.connection import Connect, PeerTerms, open_connection
from headrace.config.addresses import is_object_store
from headrace.config.group_configs import duration_ms
from headrace.config.listeners import listeners
from headrace.config.memory_budget import EXTENT_BYTES, READ_AHEAD_BYTES, SESSION_PARTITION_BYTES
from headrace.config.settings import Settings
from headrace.metastore.api.commit import FileAnswer, FileCommit
from headrace.metastore.api.read import ExtentQuery, IndexApi, OffsetKind, OffsetQuery, ReadableEnds
from headrace.metastore.process_context import ProcessContext
from headrace.protocol.request import Request, RequestHandler, Response
from headrace.storage.errors import UnavailableError
from headrace.storage.objects.store import ObjectStore


class LogEndsOfIndex:
    """Finds the ends of logs, for one agent."""

    def __init__(
        self,
        locator: Locator,
        metastore: IndexApi,
        search: TimestampSearch,
        waiters: Waiters,
        feed: FeedFollower,
        log: AwaitedLog,
    ) -> None:
        self._locator, self._metastore, self._search, self._waiters = locator, metastore, search, waiters
        self._feed, self._log = feed, log

    @property
    def is_draining(self) -> bool:
        """Whether nothing should wait any more."""
        return self._log.is_draining

    async def ends(self, offsets: Mapping[int, int], *, committed: bool) -> dict[int, ReadableEnds | ErrorCode]:
        """Partition key -> its ends, or why they are not known."""
        self._feed.read(offsets)
        queries = [ExtentQuery(key, offset, 1) for key, offset in offsets.items()]
        found: dict[int, ReadableEnds | ErrorCode] = {}
        for query, lookup in zip(queries, await self._locator.locate(queries) if queries else (), strict=True):
            if lookup.status is LookupStatus.GONE:
                found[query.partition_key] = ErrorCode.unknown_topic_or_partition
            elif lookup.status in (LookupStatus.FOUND, LookupStatus.OUT_OF_RANGE):
                end = lookup.last_stable_offset if committed else lookup.high_watermark
                found[query.partition_key] = ReadableEnds(lookup.log_start_offset, end)
            else:
                found[query.partition_key] = ErrorCode.kafka_storage_error
        return found

    async def beginnings(self, keys: Collection[int], reset: str) -> dict[int, int]:
        """Partition key -> the offset at which a group begins; those that are gone are left out. HeadraceError if it is
        not known.
        """
        duration = duration_ms(reset)
        if duration is not None:
            return await self._since(keys, self._feed.database_now_ms() - duration)
        return await self._special(keys, OffsetKind.EARLIEST if reset == "earliest" else OffsetKind.LATEST)

    async def high_watermarks(self, keys: Collection[int]) -> dict[int, int]:
        """Partition key -> its high watermark; those that are gone are left out. HeadraceError if it is not known."""
        return await self._special(keys, OffsetKind.LATEST)

    @contextmanager
    def watch(self, keys: Collection[int]) -> Iterator[Waiter]:
        """A waiter that hears of new records in these partitions."""
        with self._feed.following(keys), self._waiters.watch(keys) as waiter:
            yield waiter

    async def _special(self, keys: Collection[int], kind: OffsetKind) -> dict[int, int]:
        answers = await self._metastore.list_offsets([OffsetQuery(key, kind) for key in keys])
        return {key: answer.offset for key, answer in zip(keys, answers, strict=True) if answer.known}

    async def _since(self, keys: Collection[int], timestamp: int) -> dict[int, int]:
        """The first record of that time or later; where there is none, the end."""
        starts, ends = await self._special(keys, OffsetKind.EARLIEST), await self._special(keys, OffsetKind.LATEST)
        wanted = [key for key in keys if key in starts and key in ends]
        answers = await self._metastore.list_offsets([OffsetQuery(key, max(timestamp, 0)) for key in wanted])
        found = {}
        for key, answer in zip(wanted, answers, strict=True):
            record = None
            if answer.extent is not None:
                record = await self._search.first_record(answer.extent, starts[key], max(timestamp, 0))
            found[key] = ends[key] if record is None else record.offset
        if len(found) < len(wanted):
            raise UnavailableError("offsets not found")
        return found


def _same_store(store: ObjectStore) -> ObjectStore:
    return store


def _same_handler(handle: RequestHandler) -> RequestHandler:
    return handle


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSteps:
    """Each makes a part of the arguments of the plain one, or wraps one."""

    handle: Callable[[RequestHandler], RequestHandler] = _same_handler
    """Around the whole request."""
    locator: Callable[..., Locator] = Locator
    waiter: Callable[[], Waiter] = Waiter
    delivery: Callable[..., Delivery] = Delivery
    store: Callable[[ObjectStore], ObjectStore] = _same_store
    """Around the GETs."""


UNTRACED = FetchSteps()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSurroundings:
    """What the read path has of the rest of the agent. None of the calls may block."""

    on_metadata_moved: Callable[[int], None] = lambda head: None
    """Gets the end of the metadata log if the view's image is not of that offset."""
    zone_secret: bytes | None = None
    """Shared by the cluster's agents; without it this agent asks no other agent for file chunks."""
    traffic: ZoneTraffic
    shared_address: SharedAddress | None = None
    connect: Connect = open_connection
    authorizer: Authorizer | None = None
    """What clients may read; None if ACLs are not enforced."""
    count_sent: Callable[[int, int, int], None] = lambda partition_key, size_bytes, records: None
    """Gets what FetchMetrics counts."""
    steps: FetchSteps = UNTRACED
    uploading: Callable[[], bool] = lambda: False
    """Whether flush files are being uploaded: fewer files are read at a time then (ReadTurns)."""
    follow: FollowPolicy | None = FOLLOW_POLICY
    """How long commit shards are followed; None, or `feed.follow.all`: all are."""


class FetchService:
    """The read path of one agent."""

    def __init__(self, context: ProcessContext, view: ClusterView, around: FetchSurroundings) -> None:
        settings, clock, rng, metastore = context.settings, context.clock, context.rng, context.metastore
        steps = around.steps
        store = steps.store(context.store)
        self._view, self._on_metadata_moved = view, around.on_metadata_moved
        metrics = FetchMetrics(context.registry, around.count_sent)
        self._cache = ChunkCache(store, metrics, capacity_bytes=settings.cache_bytes)
        self._forgotten = ForgottenExtents(store, clock, rng, lambda file_id: self._cache.whole(file_id))
        self._index = index = TailIndex(view.commit_shards, on_forgotten=self._forgotten.note)
        self.log_start_offset = index.log_start_offset
        waiters, acknowledged = Waiters(metrics, steps.waiter), AcknowledgedEnds()
        follow = None if settings.feed_follow_all else around.follow
        self._followed = FollowedShards(index, view, waiters, clock, metrics, follow)
        self._feed = FeedFollower(
            metastore.index,
            FollowedTail(index, acknowledged, waiters, self._followed),
            clock,
            metrics,
            context.supervisor,
            interval_ms=settings.feed_poll_interval_ms,
            on_metadata=self._on_metadata,
        )
        self.database_now_ms = self._feed.database_now_ms
        self.zone_cache = self._make_zone_cache(context, around, metrics)
        shared = None if self.zone_cache is None else self.zone_cache.shared
        self._replays = replays = _replays(store, settings, metrics)
        turns = ReadTurns(around.uploading)
        self._reader = reader = RangeReader(store, self._cache, index.live_end, metrics, shared, replays, turns)
        self._damage_notes = DamageNotes(metastore.compaction, clock)
        files = FileIndex(store)
        damage = Damage(store, reader, files, clock, self._damage_notes)
        seeker = Seeker(reader, ResumeHints(), files, damage)
        locator = steps.locator(index, metastore.index, rng, metrics)
        ahead = replays and read_ahead(locator, reader, self._cache, replays, clock)
        delivery = steps.delivery(locator, reader, seeker, clock, rng, metrics, ahead)
        self._sessions = FetchSessions(clock, rng, metrics, partitions_max=settings.fetch_session_max_partitions)
        rendered = rendered_topics(metastore, store, view, clock)
        self._log = AwaitedLog(locator, waiters, acknowledged, self._feed, clock)
        clients = FetchClients(
            settings.fetch_max_bytes,
            allowed=None if around.authorizer is None else AllowedTopics(around.authorizer, view),
            is_shared=lambda listener: virtual_node(around.shared_address, listener) is not None,
            on_sent=partial(around.traffic.count, Path.FETCH),
        )
        self._fetch = FetchHandler(view, self._sessions, self._log, delivery, rendered, clients, clock)
        self._serve_fetch = steps.handle(self._fetch.handle)
        search, before = TimestampSearch(metastore.index, seeker, damage), self.before_log_starts_move
        self.share_reader = ShareReader(locator, delivery, self._feed.catch_up, settings.fetch_max_bytes)
        self.share_logs = LogEndsOfIndex(locator, metastore.index, search, waiters, self._feed, self._log)
        self._list_offsets = ListOffsetsHandler(view, metastore.index, search, metrics, rendered, before)

    def _make_zone_cache(
        self, context: ProcessContext, around: FetchSurroundings, metrics: FetchMetrics
    ) -> ZoneCache | None:
        if around.zone_secret is None or not context.settings.zone_cache_timeout_ms:
            return None
        view, between = self._view, listeners(context.settings).inter_broker
        terms = PeerTerms(around.zone_secret, lambda: view.node_id, self.database_now_ms, between, around.connect)
        return ZoneCache(context, terms, self._cache, view, around.traffic, metrics)

    def memory_in_use(self) -> dict[str, Callable[[], float]]:
        """Bytes by part of the memory budget."""
        return {
            "fetch_cache": lambda: self._cache.held_bytes,
            "read_ahead": lambda: 0 if self._replays is None else self._replays.held_bytes,
            "extents": lambda: (self._index.held_extents + self._feed.own_batches) * EXTENT_BYTES,
            "fetch_sessions": lambda: self._sessions.partitions * SESSION_PARTITION_BYTES,
        }

    def life_is_over(self) -> None:
        """Another server is the metastore by now: record what only this one may have had."""
        self._forgotten.note(self._feed.known_extents())

    def life_begins(self) -> None:
        """A life of the metastore begins for this process: the index is of the one before, which may have had more."""
        self._feed.start_over()

    async def start(self) -> None:
        """Poll the feed once, then follow it. Raises what the first poll raises."""
        await self._feed.start()

    async def handle_fetch(self, request: Request) -> Response:
        """API key 1, versions 4-18."""
        self._feed.asked()
        return await self._serve_fetch(request)

    async def handle_list_offsets(self, request: Request) -> Response:
        """API key 2, versions 1-11."""
        return await self._list_offsets.handle(request)

    def on_flushed(self, file_id: uuid.UUID, segment: bytes | memoryview) -> None:
        """This agent stored a file: keep its bytes for consumers near the log end. They must not change
        afterwards."""
        self._cache.put_file(file_id, segment)

    def on_committed(self, commits: Sequence[FileCommit], answers: Sequence[FileAnswer]) -> None:
        """This agent committed something: consumers wait for it."""
        self._feed.committed(commits, answers)

    @contextmanager
    def committing(self, commits: Sequence[FileCommit]) -> Iterator[None]:
        """This agent commits these files while the block runs: it follows the feed of what they are for."""
        with self._followed.committing(partial(_partition_keys, commits)):
            yield

    def on_ended(self) -> None:
        """This agent ended a transaction: consumers wait for what is stable now."""
        self._feed.changed()

    def before_log_starts_move(self) -> Callable[[int, int], None]:
        """Call it before the primary is asked to move log starts, and its result with each (partition key, new log
        start): readers of this agent then need not wait for the feed."""
        return partial(self._index.move_log_start, self._index.before_move())

    def drain(self) -> None:
        """Answer waiting fetches at once; from now on no fetch waits."""
        self._log.drain()

    async def close(self) -> None:
        """Drain, and stop all background tasks."""
        self.drain()
        await self._feed.close()
        await self._forgotten.close()
        await self._damage_notes.close()
        if self.zone_cache is not None:
            await self.zone_cache.close()
        await self._reader.close()

    def _on_metadata(self, metadata_offset: int) -> None:
        if metadata_offset != self._view.image.offset:
            self._on_metadata_moved(metadata_offset)


def _partition_keys(commits: Sequence[FileCommit]) -> Iterable[int]:
    return (batch.partition_key for commit in commits for batch in commit.batches)


def _replays(store: ObjectStore, settings: Settings, metrics: FetchMetrics) -> ChunkCache | None:
    """Return the cache of what is read ahead of replays; None on a directory, which has long runs in memory."""
    if not is_object_store(settings.bucket):
        return None
    return ChunkCache(store, metrics, capacity_bytes=READ_AHEAD_BYTES, is_counted=False)
