"""Read committed records of partitions of one cluster, in bounded memory, also while its brokers come and go.

Place: under `headrace link verify`, which has one reader for each side. A thread of the reader fetches the next answer
while the one before is unpacked.
Invariant: records come in the order of offsets, each once, those of aborted transactions not at all. Reading ends: at
`end`, or where the cluster has said EMPTY_MAX times in a row, without a throttle, that nothing is readable; the offset
is then what `records` returns. A failed request is repeated at the same offset, by new connections, TRIES times.
Invariant of memory: two answers of ANSWER_BYTES and one unpacked batch.
Source: KIP-98.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from headrace.cli.client.offsets import EARLIEST, LATEST, READ_COMMITTED, TopicPartition, list_offsets, partitions_of
from headrace.cli.client.records import AbortedBatches, FetchedBatches, fetch_batches
from headrace.protocol.client.cluster import KafkaCluster
from headrace.storage.errors import CorruptError, InvalidError, NotFoundError, RetryableError
from headrace.storage.records.check import split_batches
from headrace.storage.records.check_records import largest
from headrace.storage.records.codec import RecordColumns, open_batch
from headrace.storage.records.header import read_header

ANSWER_BYTES = 8 * 1024 * 1024
EMPTY_MAX = 10
"""Answers without a batch in a row, for each of which a broker waits half a second."""
TRIES = 10
PAUSE_SECONDS = 1.0
T = TypeVar("T")


class CommittedBounds(NamedTuple):
    """The log start and the last stable offset of a partition."""

    start: int
    end: int


class LogStartMovedError(NotFoundError):
    """Records from the offset on are no longer there: the log start has moved past it."""


class CommittedReader:
    """Use it with `with`. `opened` makes a cluster that is not connected yet; it is called again after failures."""

    def __init__(self, opened: Callable[[], KafkaCluster]) -> None:
        """Connects with the first request."""
        self._opened = opened
        self._cluster: KafkaCluster | None = None
        self._leaders: dict[TopicPartition, int] = {}
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._hang_up()

    def ask(self, work: Callable[[KafkaCluster], T]) -> T:
        """Return what `work` returns with the cluster; repeated while it fails with RetryableError."""
        return self._thread.submit(self._repeated, work).result()

    def bounds(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedBounds]:
        """The bounds of each partition. The ends are asked for after the starts: none is below its start."""
        wanted = list(places)
        if not wanted:
            return {}
        starts = self.ask(lambda cluster: list_offsets(cluster, dict.fromkeys(wanted, EARLIEST)))
        ends = self.ask(lambda cluster: list_offsets(cluster, dict.fromkeys(wanted, LATEST), READ_COMMITTED))
        return {place: CommittedBounds(starts[place], max(ends[place], starts[place])) for place in wanted}

    def records(self, place: TopicPartition, start: int, end: int) -> Generator[RecordColumns, None, int]:
        """Yield the records with offsets in [start, end), a batch at a time; where reading ended is returned.

        LogStartMovedError if the log begins behind `start` now; CorruptError for an answer that cannot be; other
        errors as `require`.
        """
        position, empty = start, 0
        fetching = self._thread.submit(self._fetched, place, position) if position < end else None
        while fetching is not None:
            answer = fetching.result()
            batches = [batch for batch in split_batches(answer.data) if _end(batch) > position]
            after = max((_end(batch) for batch in batches), default=position)
            empty = empty + 1 if after == position and not answer.throttle_s else 0
            more = after < end and empty < EMPTY_MAX
            fetching = self._thread.submit(self._fetched, place, after) if more else None
            yield from _unpacked(answer, position, end)
            position = after
        return min(position, end)

    def _fetched(self, place: TopicPartition, position: int) -> FetchedBatches:
        topic, index = place

        def fetch(cluster: KafkaCluster) -> FetchedBatches:
            if place not in self._leaders:
                self._leaders |= partitions_of(cluster, [topic])
            leader = self._leaders[place]
            (found,) = fetch_batches(cluster, leader, topic, {index: position}, ANSWER_BYTES, READ_COMMITTED)
            if found.throttle_s and not len(found.data):
                cluster.pause(found.throttle_s)
            return found

        try:
            return self._repeated(fetch)
        except InvalidError as error:
            start = self._repeated(lambda cluster: list_offsets(cluster, {place: EARLIEST}))[place]
            if start > position:
                raise LogStartMovedError(f"{topic}:{index} begins at {start} now, behind {position}") from error
            raise

    def _repeated(self, work: Callable[[KafkaCluster], T]) -> T:
        for left in reversed(range(TRIES)):
            try:
                return work(self._connected())
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
                raise CorruptError(f"the answer cannot be used: {error!r}") from error
            except RetryableError:
                cluster = self._cluster
                self._hang_up()
                if not left or cluster is None:
                    raise
                cluster.pause(PAUSE_SECONDS)
        raise AssertionError("the last try returns or raises")

    def _connected(self) -> KafkaCluster:
        """The cluster, with connections. UnavailableError if no server answers."""
        if self._cluster is None:
            cluster = self._opened()
            with contextlib.ExitStack() as stack:
                stack.enter_context(cluster)
                cluster.nodes()
                stack.pop_all()
            self._cluster = cluster
        return self._cluster

    def _hang_up(self) -> None:
        cluster, self._cluster = self._cluster, None
        self._leaders.clear()
        if cluster is not None:
            cluster.__exit__(None, None, None)


def _end(batch: memoryview) -> int:
    header = read_header(batch)
    return header.base_offset + header.last_offset_delta + 1


def _unpacked(answer: FetchedBatches, start: int, end: int) -> Generator[RecordColumns, None, None]:
    aborted = AbortedBatches(answer.aborted)
    for batch in split_batches(answer.data):
        header = read_header(batch)
        is_hidden = aborted.has(header, batch)
        if header.is_control or is_hidden or not header.record_count or header.base_offset >= end:
            continue
        found = open_batch(batch, max_opened_bytes=largest(len(batch)).unpacked_bytes).columns()
        inside = found.between(start, end)
        if len(inside.offsets):
            yield inside
