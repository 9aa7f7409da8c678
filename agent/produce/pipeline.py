"""The write path as one component: what the agent composes, starts, drains and closes.

Place: behind the listener's dispatch for Produce; in front of bucket and metastore.
Invariant: `handle` answers after the commit of everything it acknowledges, in no case before.
`drain` returns when nothing is unsettled. A loop that ends by a bug stops the whole path: requests
are then refused by closing their connections, never left to hang.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.cluster.view import ClusterView
from headrace.agent.listener.host import ProduceBytes
from headrace.agent.produce.acknowledge import Acknowledger
from headrace.agent.produce.callbacks import Callbacks, ProduceObserver
from headrace.agent.produce.commit import Committer
from headrace.agent.produce.files import FlushedFile, FlushQueue, FlushReason, StoredFile
from headrace.agent.produce.flush_policy import EARLY_PER_SECOND_S3, FlushLimits, FlushPolicy
from headrace.agent.produce.flusher import ActiveBuffer, Flusher, OpenFile
from headrace.agent.produce.inline_policy import InlinePolicy
from headrace.agent.produce.inline_watch import InlineWatch, inline_limits
from headrace.agent.produce.metrics import ProduceMetrics
from headrace.agent.produce.receive import Received, Receiver, refusal_of
from headrace.agent.produce.refused_sequences import RefusedSequences
from headrace.agent.produce.requests import not_stored
from headrace.agent.produce.upload import InlineKeeper, Uploader
from headrace.agent.produce.validate import ProducerNames, RuleBook
from headrace.config.addresses import is_object_store
from headrace.config.memory_budget import PRODUCED_BATCH_BYTES
from headrace.config.settings import Settings
from headrace.metastore.log.effective_configs import EffectiveConfigs, SettingsInForce
from headrace.metastore.process_context import ProcessContext
from headrace.protocol.produce_codec import ProduceRequest, decode_produce
from headrace.protocol.request import ClientConnection, CloseConnection, Request, Response
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError
from headrace.storage.objects.store import ObjectStore

log = logging.getLogger(__name__)

EXPIRY_TICK_S = 0.1
"""How often deadlines are looked at while requests wait: one may time out this much late."""


def flush_limits(settings: Settings) -> FlushLimits:
    """Return what the settings say about early flushes. Unless set, they are unlimited on a directory, and an agent
    earns 10 a second on S3.
    """
    rate: float | None = settings.flush_early_per_second
    if rate is None:
        rate = EARLY_PER_SECOND_S3 if is_object_store(settings.bucket) else math.inf
    is_limited = rate != math.inf
    return FlushLimits(
        linger_s=settings.linger_ms / 1000,
        idle_s=min(settings.linger_idle_ms, settings.linger_ms) / 1000,
        rate=rate,
        burst=settings.flush_early_burst,
        saved_max=int(rate) * settings.flush_early_saving_ms // 1000 if is_limited else 0,
        rate_max=max(settings.flush_early_per_second_max, rate) if is_limited else math.inf,
        free_bytes=settings.flush_early_free_bytes,
    )


class ProducePipeline:
    """`store` brings its own retries. One per agent."""

    def __init__(
        self,
        context: ProcessContext,
        view: ClusterView,
        callbacks: Callbacks,
        seen: ProduceBytes | None,
        authorizer: Authorizer | None,
        observer: ProduceObserver | None = None,
    ) -> None:
        """`seen`: what the listener sees of requests before they are whole; None without a listener. `authorizer`:
        None if ACLs are not enforced. `observer`: None if nothing is traced."""
        settings, metastore, clock, rng = context.settings, context.metastore, context.clock, context.rng
        self._clock, self._observer, self._metrics = clock, observer, ProduceMetrics(context.registry)
        self._buffer = ActiveBuffer(flush_bytes=settings.flush_bytes)
        self._queue = FlushQueue(self._settled)
        policy = self._new_policy(settings, clock)
        self._inline, self._watch = self._new_inline(context, view, callbacks)
        self._metrics.show_inline(self._inline)
        self._flusher = Flusher(
            self._buffer,
            policy,
            self._inline,
            seen or ProduceBytes(),
            clock,
            queue=self._queue,
            closed=self._flushed,
        )
        self._on_closed, self._on_settled = callbacks.on_closed, callbacks.on_settled
        self._names = names = ProducerNames(lambda names: metastore.transactions.find_transactions(names))
        self._refused = RefusedSequences(lambda number: _names_of(view, number), clock.monotonic())
        self._receiver = self._new_receiver(view, RuleBook(EffectiveConfigs(settings)), names, authorizer)
        self._uploader = self._new_uploader(context.store, settings, rng, callbacks)
        self._keeper = InlineKeeper(
            self._inline, clock, rng, self._metrics, callbacks, merge_max_bytes=settings.ingest_merge_max_bytes
        )
        self._acknowledger = Acknowledger(
            self._queue,
            self._buffer,
            view,
            clock,
            self._metrics,
            self._refused,
            callbacks,
            slow_ms=settings.slow_request_ms,
        )
        self._committer = Committer(
            metastore.commits,
            view,
            self._queue,
            self._acknowledger,
            clock,
            rng,
            self._metrics,
            callbacks,
            on_answered=partial(self._commit_answered, policy),
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self.stopped: str | None = "not started"
        """Why requests are refused; None while they are served."""

    def _new_inline(
        self, context: ProcessContext, view: ClusterView, callbacks: Callbacks
    ) -> tuple[InlinePolicy, InlineWatch]:
        in_force = SettingsInForce(context.settings, lambda: view.image)
        inline = InlinePolicy(
            inline_limits(in_force.current(), agents=1),
            lambda reason: self._metrics.not_inline.labels(reason.value).inc(),
        )
        watch = InlineWatch(
            context.metastore.inline,
            inline,
            view,
            in_force.current,
            context.clock,
            context.rng,
            reaches_bucket=callbacks.reaches_bucket,
        )
        return inline, watch

    def _new_uploader(
        self, store: ObjectStore, settings: Settings, rng: random.Random, callbacks: Callbacks
    ) -> Uploader:
        return Uploader(
            store,
            self._clock,
            rng,
            self._metrics,
            callbacks,
            parallelism=settings.upload_parallelism,
            merge_max_bytes=settings.ingest_merge_max_bytes,
        )

    def _new_policy(self, settings: Settings, clock: Clock) -> FlushPolicy:
        policy = FlushPolicy(flush_limits(settings), clock.monotonic())
        self._metrics.show_early_flushes(policy, clock, are_paid=is_object_store(settings.bucket))
        return policy

    def _new_receiver(
        self, view: ClusterView, rules: RuleBook, names: ProducerNames, authorizer: Authorizer | None
    ) -> Receiver:
        return Receiver(
            view,
            self._clock,
            rules,
            self._refused,
            on_refused=self._metrics.count_refused,
            names=names,
            authorizer=authorizer,
            new_pending=None if self._observer is None else self._observer.pending,
        )

    def memory_in_use(self) -> dict[str, Callable[[], float]]:
        """Bytes by part of the memory budget."""
        return {
            "refused_sequences": lambda: self._refused.held_bytes + self._acknowledger.remembered_bytes,
            "producer_names": lambda: self._names.in_use_bytes,
            "uploads": lambda: self._uploader.in_flight_bytes + self._queue.inline_bytes,
        }

    @property
    def is_uploading(self) -> bool:
        """Whether flush files are being uploaded, or were a moment ago."""
        return self._uploader.is_active

    def life_begins(self) -> None:
        """A life of the metastore begins for this process."""
        self._refused.life_begins(self._clock.monotonic())

    async def start(self) -> None:
        """Begin to serve."""
        self.stopped = None
        self._spawn(self._flusher.run(), "produce-flush")
        self._spawn(self._committer.run(), "produce-commit")
        self._spawn(self._expire_requests(), "produce-expiry")
        self._spawn(self._watch.run(), "produce-inline")

    def handle(self, request: Request) -> Awaitable[Response]:
        """Answer a Produce request. InvalidError when it does not decode, CloseConnection where Kafka closes too.

        What can be judged from what is here is in the buffer when this returns, without a task or a lock.
        """
        if self.stopped:
            raise CloseConnection(f"produce is stopped: {self.stopped}")
        produce = decode_produce(request.body, request.api_version, request.connection.request_elements_max)
        partitions = sum([len(topic.partitions) for topic in produce.topics])
        request.kept_bytes = PRODUCED_BATCH_BYTES * (1 + partitions)
        refusal = refusal_of(produce)
        if produce.transactional_id is not None:
            refusal = self._receiver.refusal_of_transaction(request, produce.transactional_id) or refusal
        if refusal:
            self._metrics.count_refused(refusal, partitions)
            return self._receiver.refuse(request, produce, refusal)
        connection = request.connection
        received = None if connection.produce_queue else self._receiver.receive(request, produce)
        if received is None or received.unread:
            connection.produce_queue += 1
            return self._handle_in_turn(request, produce, received)
        self._append(received, connection)
        return received.pending

    async def _handle_in_turn(self, request: Request, produce: ProduceRequest, received: Received | None) -> Response:
        """Handle in turn a request that has to wait for something, and those behind it."""
        connection = request.connection
        try:
            async with connection.produce_order:
                if received is None:
                    received = await self._receiver.receive_later(request, produce)
                if received.unread:
                    received = await self._receiver.read_records(request, received)
                self._append(received, connection)
        finally:
            connection.produce_queue -= 1
        return await received.pending

    async def drain(self) -> None:
        """Flush at once, and return when every batch has its answer. Waits as long as bucket and metastore take."""
        while not self.stopped and (self._buffer.files or self._queue.files):
            self._flusher.flush(FlushReason.DRAIN)
            self._flusher.flush_inline(FlushReason.DRAIN)
            await self._queue.is_idle.wait()

    async def close(self) -> None:
        """Stop. Requests that are still waiting end with their connections: their outcome is unknown."""
        tasks = list(self._tasks)
        self._stop("closed")
        await asyncio.gather(*tasks, return_exceptions=True)

    def _append(self, received: Received, connection: ClientConnection) -> None:
        if self.stopped:
            received.pending.abort()
        elif received.arrivals:
            if self._observer is not None:
                self._observer.appended(received.pending)
            self._flusher.append(received, connection)

    def _flushed(self, file: FlushedFile) -> None:
        self._metrics.flushed(file.trace)
        self._on_closed(file.trace)
        self._queue.append(file)
        if not (file.may_be_inline and self._keep_inline(file)):
            self._spawn(self._upload(file), "produce-upload")

    def _keep_inline(self, file: FlushedFile) -> bool:
        """Return whether the file goes into the metastore, or has failed."""
        try:
            is_kept = self._keeper.keep(file)
        except HeadraceError as error:
            self._acknowledger.failed(file, not_stored(f"no id for a file: {error}"))
            is_kept = True
        if is_kept:
            self._committer.wake()
        return is_kept

    def _commit_answered(self, policy: FlushPolicy, seconds: float, now: float, has_inline: bool) -> None:
        policy.committed(seconds, now)
        if has_inline:
            self._inline.committed(seconds, now)

    async def _upload(self, file: FlushedFile) -> None:
        try:
            await self._uploader.upload(file, self._acknowledger.drop_if_unwanted)
            if isinstance(file.stage, StoredFile):
                self._inline.stored(file.trace.stored_at - file.trace.put_started_at)
        except HeadraceError as error:
            self._acknowledger.failed(file, not_stored(f"upload failed: {error}"))
        except Exception as error:  # a bug, or a client library's: the file is not committed, so it is not stored
            log.exception("upload failed in an unforeseen way: batches=%d", file.trace.batch_count)
            self._acknowledger.failed(file, not_stored(f"upload failed: {error!r}"))
        self._committer.wake()

    def _settled(self, file: FlushedFile) -> None:
        """Every batch of a file has its answer; files behind it may be committed now."""
        self._metrics.settled(file.trace)
        self._committer.wake()
        self._flusher.look_soon()
        self._on_settled(file.trace)
        if self._observer is not None:
            self._observer.settled(file)

    async def _expire_requests(self) -> None:
        while True:
            if not self._queue.files and not self._buffer.files:
                await self._flusher.opens()
            await self._clock.sleep(EXPIRY_TICK_S)
            self._acknowledger.expire()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical("write path broken: task=%s", task.get_name(), exc_info=error)
            self._stop(f"{task.get_name()} failed: {error!r}")

    def _stop(self, reason: str) -> None:
        """End all work; waiting clients lose their connection at once instead of waiting for a time-out."""
        self.stopped = self.stopped or reason
        for task in self._tasks:
            task.cancel()
        files: list[FlushedFile | OpenFile] = [*self._queue.files, *self._buffer.files]
        for each in files:
            for request in each.waiting.requests:
                request.abort()
        self._queue.is_idle.set()


def _names_of(view: ClusterView, topic_number: int) -> tuple[str, uuid.UUID] | None:
    """The topic's name and id; None if it is gone."""
    topic = view.image.topics_by_number.get(topic_number)
    return None if topic is None else (topic.name, topic.topic_id)
