"""Carries out the rules of transactions on the rows of transactional ids.

Place: under agent/transactions; implements TransactionApi.
Invariant: what is written was decided on the row as it is: each write names the row's version, and is decided again if
that has changed. Postgres does nothing on its own, so the rules are in one place (metastore/transactions.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence, Set
from typing import Any

from headrace.metastore import transactions as policy
from headrace.metastore.api.groups import CommittedOffset
from headrace.metastore.api.transactions import (
    LateTransaction,
    OpenTransactions,
    PendingOffsetsAnswer,
    ProducerEpoch,
    Transaction,
    TransactionAnswer,
    TransactionApi,
    TransactionState,
    TransactionVerdict,
)
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.standbys.standbys import AWAIT_STANDBYS
from headrace.metastore.postgres.statement import Statement
from headrace.metastore.transactions import TransactionStep
from headrace.storage.errors import FencedError, UnavailableError

ATTEMPTS_MAX = 20
"""Each fails only because another call changed the row: its own producer's batches, or a second instance."""
_FIND = Statement("find_transactions", writes=False)
_OPEN = Statement("open_transactions", writes=False)
_WRITE = Statement("write_transaction", writes=True)
_END = Statement("end_transaction", writes=True)
_ADD_OFFSETS = Statement("add_pending_offsets", writes=True)
_CHANGED = [-1]
"""What add_pending_offsets answers if the transaction's row is not what it was."""

Decide = Callable[[Transaction | None], TransactionStep]


class PostgresTransactions(PostgresNoun):
    """The transaction operations of PostgresMetastore."""

    expire_transactional_ids = calls(TransactionApi.expire_transactional_ids, writes=True)

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, asked: ProducerEpoch, new_producer_id: int
    ) -> TransactionAnswer:
        return await self._change(
            transactional_id,
            lambda found: policy.init_producer(found, transactional_id, timeout_ms, asked, new_producer_id),
        )

    async def add_to_transaction(
        self, transactional_id: str, asked: ProducerEpoch, keys: Set[int] = frozenset(), groups: Set[str] = frozenset()
    ) -> TransactionAnswer:
        keys, groups = frozenset(keys), frozenset(groups)
        return await self._change(transactional_id, lambda found: policy.add(found, asked, keys, groups))

    async def add_pending_offsets(
        self,
        transactional_id: str,
        asked: ProducerEpoch,
        group_id: str,
        coordinator_epoch: int,
        offsets: Sequence[CommittedOffset],
        *,
        adds_group: bool,
    ) -> PendingOffsetsAnswer:
        offsets = list(offsets)
        latest = {offset.partition_key: offset for offset in offsets}
        ordered = [latest[key] for key in sorted(latest)]
        for _ in range(ATTEMPTS_MAX):
            found = await self._find(transactional_id)
            step = policy.add(found, asked, frozenset(), {group_id})
            if step.verdict is not TransactionVerdict.DONE or found is None:
                return PendingOffsetsAnswer(step.verdict, [])
            if step.after is not None:
                if not adds_group:
                    return PendingOffsetsAnswer(TransactionVerdict.INVALID_STATE, [])
                await self._write(found, step)
                continue
            (known,) = await _ADD_OFFSETS.row(
                self.pool,
                transactional_id=transactional_id,
                version=found.version,
                group_id=group_id,
                coordinator_epoch=coordinator_epoch,
                keys=[offset.partition_key for offset in ordered],
                offsets=[offset.offset for offset in ordered],
                leader_epochs=[offset.leader_epoch for offset in ordered],
                metadata=[offset.metadata.encode() for offset in ordered],
            )
            if known is None:
                raise FencedError(
                    f"group has another coordinator: group={group_id} coordinator_epoch={coordinator_epoch}"
                )
            if known != _CHANGED:
                stored = set(known)
                return PendingOffsetsAnswer(step.verdict, [offset.partition_key in stored for offset in offsets])
        raise _changes_too_often(transactional_id)

    async def end_transaction(
        self, transactional_id: str, asked: ProducerEpoch, *, commits: bool, bumps: bool, new_producer_id: int
    ) -> TransactionAnswer:
        return await self._change(
            transactional_id,
            lambda found: policy.end(found, asked, commits=commits, bumps=bumps, new_producer_id=new_producer_id),
        )

    async def time_out_transaction(self, late: LateTransaction) -> bool:
        answer = await self._change(late.transactional_id, lambda found: policy.time_out(found, late.now_ms))
        return answer.verdict is TransactionVerdict.DONE

    async def abort_transaction(self, transactional_id: str, asked: ProducerEpoch) -> TransactionVerdict:
        return (await self._change(transactional_id, lambda found: policy.abort(found, asked))).verdict

    async def open_transactions(self, most: int) -> OpenTransactions:
        count, oldest_ms, late_count, late, now_ms = await _OPEN.row(self.pool, most=most)
        return OpenTransactions(count, oldest_ms, late_count, [LateTransaction(name, now_ms) for name in late])

    async def find_transactions(self, transactional_ids: Sequence[str] | None = None) -> list[Transaction]:
        ids = None if transactional_ids is None else list(transactional_ids)
        return [_transaction(row) for row in await _FIND.rows(self.pool, ids=ids)]

    async def _change(self, transactional_id: str, decide: Decide) -> TransactionAnswer:
        """Decide on the row, and write the result while the row is still the same."""
        for _ in range(ATTEMPTS_MAX):
            found = await self._find(transactional_id)
            step = decide(found)
            if step.after is None:
                if step.verdict is TransactionVerdict.DONE:  # says what an earlier call did
                    await AWAIT_STANDBYS.row(self.pool)
                return TransactionAnswer(step.verdict, step.producer)
            if await self._write(found, step):
                return TransactionAnswer(step.verdict, step.producer)
        raise _changes_too_often(transactional_id)

    async def _find(self, transactional_id: str) -> Transaction | None:
        return next(iter(await self.find_transactions([transactional_id])), None)

    def _write(self, found: Transaction | None, step: TransactionStep) -> Awaitable[bool]:
        """Return whether the row was still `found`, and is the step's now."""
        after = step.after
        assert after is not None, "nothing to write"
        row = {
            "transactional_id": after.transactional_id,
            "version": 0 if found is None else found.version,
            "producer_id": after.producer.producer_id,
            "producer_epoch": after.producer.epoch,
            "state": int(after.state),
            "timeout_ms": after.timeout_ms,
            "previous_producer_id": after.previous.producer_id,
            "previous_epoch": after.previous.epoch,
        }
        if step.end is not None:
            end = {"commits": step.end.commits, "marker_epoch": step.end.marker_epoch}
            return self._done(_END, row | end)
        held = frozenset() if found is None else found.partition_keys
        added = {"groups": sorted(after.groups), "keys": sorted(after.partition_keys - held)}
        return self._done(_WRITE, row | added)

    async def _done(self, statement: Statement, parameters: dict[str, Any]) -> bool:
        (done,) = await statement.row(self.pool, **parameters)
        return bool(done)


def _transaction(row: Sequence[Any]) -> Transaction:
    """Return the transaction from a row of find_transactions.sql."""
    (
        name,
        producer_id,
        epoch,
        state,
        timeout_ms,
        before_id,
        before_epoch,
        groups,
        version,
        begun_ms,
        changed_ms,
        keys,
    ) = row
    return Transaction(
        transactional_id=name,
        producer=ProducerEpoch(producer_id, epoch),
        state=TransactionState(state),
        timeout_ms=timeout_ms,
        previous=ProducerEpoch(before_id, before_epoch),
        partition_keys=frozenset(keys),
        groups=frozenset(groups),
        begun_ms=begun_ms,
        changed_ms=changed_ms,
        version=version,
    )


def _changes_too_often(transactional_id: str) -> UnavailableError:
    return UnavailableError(f"transaction changes too often: transactional_id={transactional_id}")
