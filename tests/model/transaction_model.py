"""The metastore's transactions as a model: logs, groups and the feed in memory, with the real rules of policy.py.

Place: under tests/simulation's histories of transactions; each method is one statement on Postgres.
Invariant: a method takes effect at once and completely. `begin_life` may lose the last changes, as a promotion does.
"""

from __future__ import annotations

import copy
import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.metastore import transactions as policy
from headrace.metastore.api.read import (
    ALL_BYTES,
    NONE_OPEN,
    AbortedRange,
    Extent,
    ExtentQuery,
    FeedKind,
    FeedPage,
    FeedRow,
    PartitionExtents,
)
from headrace.metastore.api.transactions import (
    NO_PRODUCER,
    ProducerEpoch,
    Transaction,
    TransactionState,
    TransactionVerdict,
)
from headrace.metastore.transaction_markers import MARKER_BYTES, Marker, marker_file_id
from headrace.metastore.transactions import TransactionStep

DONE, FENCED = TransactionVerdict.DONE, TransactionVerdict.FENCED
INVALID = TransactionVerdict.INVALID_STATE
BATCH_BYTES = 100


@dataclass
class PartitionLog:
    """One partition; each extent is a batch of one record, or a marker."""

    extents: list[Extent] = field(default_factory=list)
    aborted: list[AbortedRange] = field(default_factory=list)
    first_open: dict[int, int] = field(default_factory=dict)
    """First open offsets by producer id with an open transaction: its first offset."""
    sequences: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The sequences by producer id: epoch and next sequence."""

    @property
    def end(self) -> int:
        return len(self.extents)

    @property
    def open_offset(self) -> int:
        return min(self.first_open.values(), default=NONE_OPEN)


@dataclass
class Stored:
    """Everything that a promotion may lose."""

    logs: dict[int, PartitionLog]
    rows: dict[str, Transaction] = field(default_factory=dict)
    pending: dict[tuple[int, str], int] = field(default_factory=dict)
    """Pending offsets by producer id and group: the position that the open transaction commits."""
    positions: dict[str, int] = field(default_factory=dict)
    feed: list[FeedRow] = field(default_factory=list)


class TransactionModel:
    """One commit shard; a IndexApi for the agents' own code."""

    rules: Any = policy

    def __init__(self, partitions: int) -> None:
        self.stored = Stored({key: PartitionLog() for key in range(partitions)})
        self.incarnation_id = uuid.UUID(int=1)
        self.now_ms = 0
        self.producers: dict[uuid.UUID, int] = {}
        """What is in a batch's header: by file the producer id."""
        self.names: dict[uuid.UUID, str] = {}
        """And by which transactional id."""
        self._kept = copy.deepcopy(self.stored)
        self._ids = itertools.count(1_000)
        self._files = itertools.count(1)

    def keep(self) -> None:
        """A promotion loses nothing of what is there now."""
        self._kept = copy.deepcopy(self.stored)

    def begin_life(self) -> None:
        """The standby takes over: what came after `keep` is lost; open transactions are aborted, all ids forgotten."""
        self.stored = copy.deepcopy(self._kept)
        self.incarnation_id = uuid.UUID(int=self.incarnation_id.int + 1)
        self.forget_transactions()
        self.keep()

    def forget_transactions(self) -> None:
        """Do the same as forget_transactions.sql."""
        for row in self.stored.rows.values():
            if row.state is TransactionState.ONGOING:
                self.append_markers(row.producer.producer_id, commits=False, epoch=row.producer.epoch + 1)
        self.stored.rows.clear()
        self.stored.pending.clear()

    def init_producer(self, name: str, asked: ProducerEpoch = NO_PRODUCER) -> tuple[TransactionVerdict, ProducerEpoch]:
        found = self.stored.rows.get(name)
        return self._take(name, self.rules.init_producer(found, name, 1_000, asked, next(self._ids)))

    def add(
        self, name: str, who: ProducerEpoch, keys: frozenset[int] = frozenset(), groups: frozenset[str] = frozenset()
    ) -> TransactionVerdict:
        """AddPartitionsToTxn, AddOffsetsToTxn."""
        return self._take(name, self.rules.add(self.stored.rows.get(name), who, keys, groups))[0]

    def end(
        self, name: str, who: ProducerEpoch, *, commits: bool, bumps: bool
    ) -> tuple[TransactionVerdict, ProducerEpoch]:
        found = self.stored.rows.get(name)
        step = self.rules.end(found, who, commits=commits, bumps=bumps, new_producer_id=next(self._ids))
        return self._take(name, step)

    def time_out(self, name: str) -> None:
        self._take(name, self.rules.time_out(self.stored.rows.get(name), self.now_ms))

    def produce(
        self, key: int, name: str, who: ProducerEpoch, sequence: int, *, adds: bool
    ) -> tuple[TransactionVerdict, uuid.UUID | None]:
        """One batch; its file, None for a refused one or a duplicate."""
        log = self.stored.logs[key]
        epoch, expected = log.sequences.get(who.producer_id, (-1, 0))
        if epoch == who.epoch and sequence < expected:
            return DONE, None
        verdict = self.judge(key, name, who, adds=adds)
        if verdict is not DONE:
            return verdict, None
        if epoch > who.epoch or sequence != (expected if epoch == who.epoch else 0):
            return INVALID, None
        self.note(key, name, who, log)
        log.sequences[who.producer_id] = (who.epoch, sequence + 1)
        file_id = uuid.UUID(int=7 << 76 | next(self._files))
        self.producers[file_id], self.names[file_id] = who.producer_id, name
        self._append(key, file_id, position=0, length=BATCH_BYTES)
        return DONE, file_id

    def judge(self, key: int, name: str, who: ProducerEpoch, *, adds: bool) -> TransactionVerdict:
        """Do the same as judge_transactions.sql."""
        row = self.stored.rows.get(name)
        if row is None or row.producer != who:
            return FENCED
        is_added = row.state is TransactionState.ONGOING and key in row.partition_keys
        return DONE if adds or is_added else INVALID

    def note(self, key: int, name: str, who: ProducerEpoch, log: PartitionLog) -> None:
        """Do the same as note_transactions.sql."""
        row = self.stored.rows[name]
        if row.state is not TransactionState.ONGOING or key not in row.partition_keys:
            begun_ms = row.begun_ms if row.state is TransactionState.ONGOING else self.now_ms
            self.stored.rows[name] = replace(
                row,
                state=TransactionState.ONGOING,
                partition_keys=row.partition_keys | {key},
                begun_ms=begun_ms,
                version=row.version + 1,
            )
        log.first_open.setdefault(who.producer_id, log.end)

    def commit_offset(
        self, name: str, who: ProducerEpoch, group: str, position: int, *, adds: bool
    ) -> TransactionVerdict:
        """TxnOffsetCommit."""
        row = self.stored.rows.get(name)
        is_added = row is not None and row.state is TransactionState.ONGOING and group in row.groups
        if not is_added and not adds and row is not None and row.producer == who:
            return INVALID
        verdict = self.add(name, who, groups=frozenset({group}))
        if verdict is DONE:
            self.stored.pending[who.producer_id, group] = position
        return verdict

    def position(self, group: str) -> int | None:
        """OffsetFetch with require_stable: None while an open transaction may change it."""
        if any(pending_group == group for _, pending_group in self.stored.pending):
            return None
        return self.stored.positions.get(group, 0)

    def append_markers(self, producer_id: int, *, commits: bool, epoch: int) -> None:
        """Do the same as append_markers in end_transaction.sql."""
        marker = marker_file_id(Marker(producer_id, epoch, commits))
        for key, log in self.stored.logs.items():
            first = log.first_open.pop(producer_id, None)
            if first is not None:
                ranges = [] if commits else [AbortedRange(key, producer_id, first, log.end)]
                log.aborted += ranges
                self._append(key, marker, position=self.now_ms, length=MARKER_BYTES, aborted=ranges)

    def store_offsets(self, producer_id: int, *, commits: bool) -> None:
        """Do the same as store_pending_offsets.sql."""
        for owner, group in [one for one in self.stored.pending if one[0] == producer_id]:
            position = self.stored.pending.pop((owner, group))
            if commits:
                self.stored.positions[group] = position

    def _take(self, name: str, step: TransactionStep) -> tuple[TransactionVerdict, ProducerEpoch]:
        found = self.stored.rows.get(name)
        if step.after is not None:
            if step.end is not None and found is not None:
                self.append_markers(found.producer.producer_id, commits=step.end.commits, epoch=step.end.marker_epoch)
                self.store_offsets(found.producer.producer_id, commits=step.end.commits)
            is_open = step.after.state is TransactionState.ONGOING
            was_open = found is not None and found.state is TransactionState.ONGOING
            begun_ms = (found.begun_ms if found is not None and was_open else self.now_ms) if is_open else -1
            version = 1 if found is None else found.version + 1
            self.stored.rows[name] = replace(step.after, begun_ms=begun_ms, version=version)
        return step.verdict, step.producer

    def _append(
        self, key: int, file_id: uuid.UUID, *, position: int, length: int, aborted: Sequence[AbortedRange] = ()
    ) -> None:
        log = self.stored.logs[key]
        extent = Extent(key, log.end, log.end, file_id, position, length, 0, -1)
        log.extents.append(extent)
        self.stored.feed.append(
            FeedRow(
                0,
                len(self.stored.feed) + 1,
                FeedKind.TRANSACTION,
                [extent],
                first_open_offsets={key: log.open_offset},
                aborted=list(aborted),
            )
        )

    # IndexApi, as far as a fetch needs it

    async def find_extents(self, queries: Sequence[ExtentQuery], max_bytes: int = ALL_BYTES) -> list[PartitionExtents]:
        """See metastore.api.read.IndexApi."""
        return [self._found(query) for query in queries]

    def _found(self, query: ExtentQuery) -> PartitionExtents:
        log = self.stored.logs[query.partition_key]
        extents = log.extents[query.offset :][:4]
        last = extents[-1].last_offset if extents else -1
        aborted = [one for one in log.aborted if one.last_offset >= query.offset and one.first_offset <= last]
        return PartitionExtents(query.partition_key, True, 0, log.end, extents, log.open_offset, aborted)

    def poll(self, positions: Mapping[int, int]) -> FeedPage:
        """See metastore.api.read.IndexApi.poll_feed."""
        head = len(self.stored.feed)
        rows = self.stored.feed[positions.get(0, head) :][:8]
        return FeedPage(self.incarnation_id, self.now_ms, {0: head}, rows, [], 0)
