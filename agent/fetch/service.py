"""The composed read path: the interface for the rest of the agent.

Place: the agent's process registers `handle_fetch` and `handle_list_offsets` with the dispatcher; the
write path calls `on_flushed` and `on_committed`, and takes creation times of files from `database_now_ms`.
Invariant: nothing is served before the first poll of the feed; nothing runs after `close`.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from prometheus_client import REGISTRY, CollectorRegistry

from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.cluster.shared_address import SharedAddress, virtual_node
from headrace.agent.cluster.view import ClusterView
from headrace.agent.cluster.zone_traffic import Path, ZoneTraffic
from headrace.agent.fetch.allowed_topics import AllowedTopics
from headrace.agent.fetch.damage_notes import DamageNotes, NoteDamage
from headrace.agent.fetch.files.cache import ChunkCache
from headrace.agent.fetch.files.damage import Damage
from headrace.agent.fetch.files.file_index import FileIndex
from headrace.agent.fetch.files.read import RangeReader
from headrace.agent.fetch.files.read_ahead import read_ahead
from headrace.agent.fetch.files.read_turns import ReadTurns
from headrace.agent.fetch.files.resume import ResumeHints
from headrace.agent.fetch.files.seek import Seeker
from headrace.agent.fetch.forgotten import ForgottenExtents
from headrace.agent.fetch.handler import FetchHandler
from headrace.agent.fetch.index.acknowledged import AcknowledgedEnds
from headrace.agent.fetch.index.feed import FeedFollower
from headrace.agent.fetch.index.followed_shards import FollowedShards
from headrace.agent.fetch.index.index import TailIndex
from headrace.agent.fetch.index.shard_interest import FOLLOW_POLICY, FollowPolicy
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.offsets.list_offsets import ListOffsetsHandler
from headrace.agent.fetch.offsets.timestamps import TimestampSearch
from headrace.agent.fetch.rendered.rendered_topics import rendered_topics
from headrace.agent.fetch.sessions import FetchSessions
from headrace.agent.fetch.share.deliver import ShareReader
from headrace.agent.fetch.share.log_ends import LogEndsOfIndex
from headrace.agent.fetch.steps import UNTRACED, FetchSteps
from headrace.agent.fetch.waiters import Waiters
from headrace.agent.fetch.zone_cache.service import ZoneCache
from headrace.agent.peers.connection import Connect, open_connection
from headrace.config.listeners import listeners
from headrace.config.memory_budget import EXTENT_BYTES, READ_AHEAD_BYTES, SESSION_PARTITION_BYTES
from headrace.config.settings import Settings
from headrace.metastore.api.commit import FileAnswer, FileCommit
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.read import IndexApi
from headrace.protocol.request import Request, Response
from headrace.storage.clock import Clock
from headrace.storage.objects.store import ObjectStore
from headrace.storage.supervision import Supervisor


class FetchService:
    """`on_metadata_moved` is called with the end of the metadata log if the view's image is not of that offset.

    `rendered_logs`: what the topics without files are rendered from; without it they are unknown.
    `zone_secret` is shared by the cluster's agents; without it this agent asks no other agent for file chunks.
    `authorizer`: None if ACLs are not enforced. `count_sent`: see deliver.py. `uploading`: see read_turns.py.
    `follow`: for how long commit shards are followed; None, or `feed.follow.all`: all are. `note_damage`: records what
    is found damaged; None if nothing is recorded.
    """

    def __init__(
        self,
        store: ObjectStore,
        metastore: IndexApi,
        view: ClusterView,
        settings: Settings,
        clock: Clock,
        rng: random.Random,
        registry: CollectorRegistry = REGISTRY,
        *,
        on_metadata_moved: Callable[[int], None] = lambda head: None,
        rendered_logs: Metastore | None = None,
        zone_secret: bytes | None = None,
        traffic: ZoneTraffic | None = None,
        shared_address: SharedAddress | None = None,
        connect: Connect = open_connection,
        authorizer: Authorizer | None = None,
        count_sent: Callable[[int, int, int], None] = lambda partition_key, size_bytes, records: None,
        steps: FetchSteps = UNTRACED,
        supervisor: Supervisor | None = None,
        uploading: Callable[[], bool] = lambda: False,
        follow: FollowPolicy | None = FOLLOW_POLICY,
        note_damage: NoteDamage | None = None,
    ) -> None:
        store = steps.store(store)
        self._connect, self._view, self._on_metadata_moved = connect, view, on_metadata_moved
        metrics = FetchMetrics(registry)
        self._cache = ChunkCache(store, metrics, capacity_bytes=settings.cache_bytes)
        self._index = index = TailIndex(view.commit_shards)
        self._forgotten = ForgottenExtents(store, rng)
        index.on_forgotten = self._forgotten.note
        waiters, acknowledged = Waiters(metrics, steps.waiter), AcknowledgedEnds()
        follow = None if settings.feed_follow_all else follow
        self._followed = FollowedShards(index, view, waiters, clock, metrics, follow)
        self._feed = self._make_feed(metastore, acknowledged, waiters, settings, clock, metrics, supervisor)
        traffic = traffic or ZoneTraffic(settings.broker_rack, registry)
        self.zone_cache = self._make_zone_cache(zone_secret, settings, clock, traffic, metrics, registry)
        shared = None if self.zone_cache is None else self.zone_cache.shared
        self._replays = replays = _replays(store, settings, metrics)
        turns, most = ReadTurns(uploading), settings.fetch_session_max_partitions
        self._reader = reader = RangeReader(store, self._cache, index.live_end, metrics, shared, replays, turns)
        self._damage_notes = note_damage and DamageNotes(note_damage, clock)
        damage, seeker = _seeking(store, reader, clock, self._damage_notes)
        locator = steps.locator(index, metastore, rng, metrics)
        ahead = replays and read_ahead(locator, reader, self._cache, replays, clock)
        delivery = steps.delivery(locator, reader, seeker, self._cache, clock, rng, metrics, count_sent, ahead, damage)
        self._sessions = sessions = FetchSessions(clock, rng, metrics, partitions_max=most)
        rendered = None if rendered_logs is None else rendered_topics(rendered_logs, store, view, clock)
        self._fetch = FetchHandler(
            view,
            sessions,
            locator,
            delivery,
            waiters,
            clock,
            max_bytes=settings.fetch_max_bytes,
            acknowledged=acknowledged,
            catch_up=self._feed.catch_up,
            reads=self._feed.read,
            follows=self._feed.following,
            rendered=rendered,
            on_sent=partial(traffic.count, Path.FETCH),
            allowed=None if authorizer is None else AllowedTopics(authorizer, view),
            is_shared=lambda listener: virtual_node(shared_address, listener) is not None,
        )
        self._serve_fetch = steps.handle(self._fetch.handle)
        search, before = TimestampSearch(metastore, seeker, damage), self.before_log_starts_move
        self.share_reader = ShareReader(locator, delivery, self._feed.catch_up, settings.fetch_max_bytes)
        self.share_logs = LogEndsOfIndex(locator, metastore, search, waiters, self._feed, self._fetch)
        self._list_offsets = ListOffsetsHandler(view, metastore, search, metrics, rendered, before)

    def _make_feed(
        self,
        metastore: IndexApi,
        acknowledged: AcknowledgedEnds,
        waiters: Waiters,
        settings: Settings,
        clock: Clock,
        metrics: FetchMetrics,
        supervisor: Supervisor | None,
    ) -> FeedFollower:
        return FeedFollower(
            metastore,
            self._index,
            acknowledged,
            waiters,
            clock,
            metrics,
            interval_ms=settings.feed_poll_interval_ms,
            on_metadata=self._on_metadata,
            supervisor=supervisor,
            followed=self._followed,
        )

    def _make_zone_cache(
        self,
        secret: bytes | None,
        settings: Settings,
        clock: Clock,
        traffic: ZoneTraffic,
        metrics: FetchMetrics,
        registry: CollectorRegistry,
    ) -> ZoneCache | None:
        if secret is None or not settings.zone_cache_timeout_ms:
            return None
        return ZoneCache(
            secret,
            self._cache,
            self._view,
            clock,
            self.database_now_ms,
            traffic,
            metrics,
            registry,
            timeout_ms=settings.zone_cache_timeout_ms,
            connect=self._connect,
            listener=listeners(settings).inter_broker,
        )

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

    def log_start_offset(self, partition_key: int) -> int:
        """The log start as far as known here, for produce responses; -1 if unknown."""
        return self._index.log_start_offset(partition_key)

    def before_log_starts_move(self) -> Callable[[int, int], None]:
        """Call it before the primary is asked to move log starts, and its result with each (partition key, new log
        start): readers of this agent then need not wait for the feed."""
        return partial(self._index.move_log_start, self._index.before_move())

    def database_now_ms(self) -> int:
        """The database's clock, for the creation time in file ids. UnavailableError before `start`."""
        return self._feed.database_now_ms()

    def drain(self) -> None:
        """Answer waiting fetches at once; from now on no fetch waits."""
        self._fetch.drain()

    async def close(self) -> None:
        """Drain, and stop all background tasks."""
        self.drain()
        await self._feed.close()
        await self._forgotten.close()
        if self._damage_notes is not None:
            await self._damage_notes.close()
        if self.zone_cache is not None:
            await self.zone_cache.close()
        await self._reader.close()

    def _on_metadata(self, metadata_offset: int) -> None:
        if metadata_offset != self._view.image.offset:
            self._on_metadata_moved(metadata_offset)


def _partition_keys(commits: Sequence[FileCommit]) -> Iterable[int]:
    return (batch.partition_key for commit in commits for batch in commit.batches)


def _seeking(store: ObjectStore, reader: RangeReader, clock: Clock, notes: DamageNotes | None) -> tuple[Damage, Seeker]:
    index = FileIndex(store)
    damage = Damage(store, reader, index, clock, notes)
    return damage, Seeker(reader, ResumeHints(), index, damage)


def _replays(store: ObjectStore, settings: Settings, metrics: FetchMetrics) -> ChunkCache | None:
    """Return the cache of what is read ahead of replays; None on a directory, which has long runs in memory."""
    if not settings.bucket.startswith("s3://"):
        return None
    return ChunkCache(store, metrics, capacity_bytes=READ_AHEAD_BYTES, is_counted=False)
