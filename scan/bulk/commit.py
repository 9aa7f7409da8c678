"""Commits a bulk write: stages its files in chunks, decides the batch, commits the decided chunks.

Place: on Spark's driver, after all tasks have stored their files and reported them. The topics that a write may go
to, and their rules for new records, are read when a write is planned, and sent to every task.
Invariant of topics: sizes, keys, times and codec are those of the topic's configs, as agents apply them
(agent/produce/validate.py).
Invariant: a batch of a writer is in the topics once, whole, from one attempt, also if drivers run it at the same
time or one after another. A driver that is killed before the decision leaves chunks that are forgotten, and files
for the sweeper; one that is killed later leaves a decided write: the rerun of the batch, the writer's next batch or
an agent's housekeeping commits the remaining chunks. The bucket has the record of the decision before the driver's
first chunk (metastore/recorded_objects.py). A batch is reported as written only if the bucket says, after its last
chunk, that the metastore is in the life in which the batch was staged: an old primary that stays up accepts every
call.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from headrace.config.settings import Settings
from headrace.metastore.api.commit import BulkFile, BulkOutcome
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.keys import partition_key, split_partition_key
from headrace.metastore.life.watch import FollowedLife
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.linked_topics import NO_RECORDS, why_linked
from headrace.metastore.recorded_objects import FILES_PER_OBJECT, PREFIX, write_entries
from headrace.scan.errors import BulkWriteError
from headrace.storage.clock import Clock
from headrace.storage.errors import InvalidError, NotFoundError, OutcomeUnknownError, RetryableError, UnavailableError
from headrace.storage.objects.store import ObjectStore
from headrace.storage.records.compression import Codec

_CODECS = {"uncompressed": Codec.NONE, **{codec.name.lower(): codec for codec in Codec}}


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableTopic:
    """One incarnation of a topic. Times in ms, sizes in bytes."""

    name: str
    topic_id: uuid.UUID
    topic_number: int
    initial_partitions: int
    partitions: int
    """Those that take records: the ones with a lower index."""
    max_message_bytes: int
    codec: Codec | None
    """None: the writer's."""
    needs_keys: bool
    stamps_append_time: bool
    behind_max_ms: int
    ahead_max_ms: int

    def key(self, partition: int) -> int:
        """Return the key of a partition that exists."""
        return partition_key(self.topic_number, partition)


def writable_topics(
    image: MetadataImage, settings: Settings, names: Iterable[str] | None
) -> Mapping[str, WritableTopic]:
    """The named topics, or all that take records. NotFoundError names one that does not exist, InvalidError a copy that
    a link keeps.
    """
    configs = EffectiveConfigs(settings)
    if names is None:
        return {name: _writable(image, configs, topic) for name, topic in _ordinary(image)}
    found = {}
    for name in names:
        topic = image.topics_by_name.get(name)
        if topic is None:
            raise NotFoundError(f"topic does not exist: topic={name}")
        if reason := why_linked(image, name, NO_RECORDS):
            raise InvalidError(reason)
        found[name] = _writable(image, configs, topic)
    return found


def _ordinary(image: MetadataImage) -> list[tuple[str, TopicImage]]:
    """The topics that take records."""
    return [(name, topic) for name, topic in image.topics_by_name.items() if not image.link_of(name)]


def _writable(image: MetadataImage, configs: EffectiveConfigs, topic: TopicImage) -> WritableTopic:
    def value(name: str) -> str:
        return configs.topic_value(image, topic.name, name)

    counts = topic.ordered_partitions
    return WritableTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        topic_number=topic.topic_number,
        initial_partitions=counts.initial,
        partitions=counts.undeleted,
        max_message_bytes=int(value("max.message.bytes")),
        codec=_CODECS.get(value("compression.type")),
        needs_keys="compact" in value("cleanup.policy"),
        stamps_append_time=value("message.timestamp.type") == "LogAppendTime",
        behind_max_ms=int(value("message.timestamp.before.max.ms")),
        ahead_max_ms=int(value("message.timestamp.after.max.ms")),
    )


logger = logging.getLogger(__name__)

T = TypeVar("T")

CHUNK_RUNS = 500
"""Extents of one chunk, unless one file has more: agents wait for its commit shards meanwhile, some 20 ms."""
CALL_ATTEMPTS = 60
CALL_PAUSE_SECONDS = 1.0
"""A metastore that is away for a minute fails no job."""


class BulkWrite(NamedTuple):
    """One batch of a writer, which is decided once."""

    writer: str
    batch_id: int
    topics: tuple[WritableTopic, ...] = ()
    """As the files were laid out; they also give errors their names."""
    is_named: bool = False
    """Whether by a writeId."""


class BulkCommit:
    """One attempt at one batch of a writer."""

    def __init__(
        self,
        metastore: Metastore,
        write: BulkWrite,
        clock: Clock,
        rng: random.Random,
        *,
        bucket: ObjectStore | None = None,
        life: FollowedLife | None = None,
        chunk_runs: int = CHUNK_RUNS,
    ) -> None:
        """`bucket`: gets the record of the decision; None: a job of the compactors writes it some seconds later.
        `life`: the process's; None only if something else makes sure that `metastore` stays in one life.
        """
        self._life = life
        self._bucket, self._rng = bucket, rng
        self._is_named = write.is_named
        self._names = {topic.topic_number: topic.name for topic in write.topics}
        self._counts = {topic.topic_number: topic.partitions for topic in write.topics}
        self._metastore, self._writer, self._batch_id = metastore, write.writer, write.batch_id
        self._clock, self._chunk_runs = clock, chunk_runs
        self.attempt = uuid.UUID(int=rng.getrandbits(128), version=4)

    async def commit(self, files: Sequence[BulkFile]) -> bool:
        """Make `files` the batch; False if an earlier attempt is: then these files are orphans.

        BulkWriteError if nothing was written, and never will be under this attempt. RetryableError if the partitions of
        a topic change; this or OutcomeUnknownError if the metastore is away for too long, or is in another life: run
        the batch again.
        """
        begun_in = self._metastore_life()
        counts = self._counts_of(files)
        chunks = list(_chunks(files, self._chunk_runs))
        for number, chunk in enumerate(chunks):
            await self._repeated(lambda n=number, c=chunk: self._metastore.commits.stage_bulk_chunk(self.attempt, n, c))  # type: ignore[misc]
        await self._require(begun_in)
        while True:
            decision = await self._repeated(
                lambda: self._metastore.commits.decide_bulk_write(
                    self._writer, self._batch_id, self.attempt, len(chunks), counts, is_named=self._is_named
                )
            )
            if decision.outcome is BulkOutcome.TOPIC_CHANGES:
                raise UnavailableError(self._refusal(decision.outcome, decision.partition_key))
            if decision.attempt is None:
                raise BulkWriteError(self._refusal(decision.outcome, decision.partition_key))
            if decision.attempt == self.attempt:
                await self._record(files, begun_in)
            await self._complete(decision.attempt, decision.next_chunk, decision.chunks)
            if decision.outcome is BulkOutcome.DECIDED:
                await self._confirm(begun_in)
                return decision.attempt == self.attempt

    def _metastore_life(self) -> int | None:
        return None if self._life is None else self._life.keeper.life

    async def _require(self, begun_in: int | None) -> None:
        """UnavailableError if the metastore is in another life than `begun_in`, or this server is not the metastore."""
        if (life := self._life) is not None and await self._repeated(life.require_current) != begun_in:
            raise UnavailableError(
                f"another life of the metastore has begun, run the batch again: writer={self._writer}"
                f" batch_id={self._batch_id} begun_in={begun_in} life={life.keeper.life}"
            )

    async def _confirm(self, begun_in: int | None) -> None:
        """As `_require`, after the decision: OutcomeUnknownError, because a synchronous standby has it, too."""
        try:
            await self._require(begun_in)
        except UnavailableError as error:
            raise OutcomeUnknownError(f"written to a server that may not be the metastore any more: {error}") from error

    def _counts_of(self, files: Sequence[BulkFile]) -> dict[int, int]:
        """Return how many partitions the topics in these files have, or the only topic of the write; nothing if one is
        not known.
        """
        numbers = {split_partition_key(run.partition_key)[0] for file in files for run in file.runs}
        if len(self._counts) == 1:
            numbers |= self._counts.keys()
        return {n: self._counts[n] for n in sorted(numbers)} if self._counts.keys() >= numbers else {}

    async def _record(self, files: Sequence[BulkFile], begun_in: int | None) -> None:
        """A repeated one is an object more, which the job joins with others."""
        ids = [file.file_id for file in files]
        if (bucket := self._bucket) is None:
            return
        life = self._metastore.life.named_life if begun_in is None else begun_in
        for start in range(0, len(ids), FILES_PER_OBJECT):
            some, name = ids[start : start + FILES_PER_OBJECT], uuid.UUID(int=self._rng.getrandbits(128), version=4)
            await self._repeated(lambda s=some, n=name: write_entries(bucket, PREFIX, life, n, s))  # type: ignore[misc]

    async def _complete(self, attempt: uuid.UUID, next_chunk: int, chunks: int) -> None:
        while next_chunk < chunks:
            next_chunk, chunks = await self._repeated(
                lambda n=next_chunk: self._metastore.commits.commit_bulk_chunk(self._writer, attempt, n)  # type: ignore[misc]
            )

    def _refusal(self, outcome: BulkOutcome, partition_key: int | None) -> str:
        what = f"nothing was written: writer={self._writer} batch_id={self._batch_id}"
        number, partition = split_partition_key(partition_key or 0)
        topic = self._names.get(number, f"number {number}")
        match outcome:
            case BulkOutcome.TOPIC_CHANGES:
                return f"{what}: the number of partitions changes, run it again: topic={topic} partition={partition}"
            case BulkOutcome.OTHER_TOPIC:
                return f"{what}: a write with this id was committed without topic={topic}: each write needs its own id"
            case BulkOutcome.UNKNOWN_PARTITION:
                return f"{what}: the topic was deleted meanwhile: topic={topic} partition={partition}"
            case BulkOutcome.FILES_TOO_OLD:
                return f"{what}: it took longer than writeTermHours (raise it), or an executor's clock is wrong"
            case _:
                return f"{what}: its staged chunks are gone: the commit took longer than a day"

    async def _repeated(self, call: Callable[[], Awaitable[T]]) -> T:
        """Every call is idempotent."""
        for left in reversed(range(CALL_ATTEMPTS)):
            try:
                return await call()
            except (RetryableError, OutcomeUnknownError) as error:
                if not left:
                    raise
                logger.warning("bulk commit repeats a call: writer=%s error=%s", self._writer, error)
                await self._clock.sleep(CALL_PAUSE_SECONDS)
        raise AssertionError


def _chunks(files: Sequence[BulkFile], runs_max: int) -> Iterator[list[BulkFile]]:
    """Whole files, in order; `runs_max` runs, or one file."""
    chunk: list[BulkFile] = []
    runs = 0
    for file in files:
        if chunk and runs + len(file.runs) > runs_max:
            yield chunk
            chunk, runs = [], 0
        chunk.append(file)
        runs += len(file.runs)
    if chunk:
        yield chunk
