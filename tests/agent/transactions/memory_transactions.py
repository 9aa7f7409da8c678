"""The rules of transactions on rows in memory, for tests of the requests.

Fault model: `failure` is raised instead of an answer, after the change if it says that the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from headrace.metastore import transactions as policy
from headrace.metastore.api.transactions import (
    ProducerEpoch,
    Transaction,
    TransactionAnswer,
    TransactionState,
    TransactionVerdict,
)
from headrace.metastore.transactions import TransactionStep
from headrace.storage.errors import HeadraceError, OutcomeUnknownError


class MemoryTransactions:
    """What the handlers ask of TransactionApi; `now_ms` is the time at which transactions begin."""

    def __init__(self) -> None:
        self.rows: dict[str, Transaction] = {}
        self.now_ms = 1_000_000
        self.failure: HeadraceError | None = None

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, asked: ProducerEpoch, new_producer_id: int
    ) -> TransactionAnswer:
        found = self.rows.get(transactional_id)
        return self._take(
            transactional_id, policy.init_producer(found, transactional_id, timeout_ms, asked, new_producer_id)
        )

    async def add_to_transaction(
        self, transactional_id: str, asked: ProducerEpoch, keys: Set[int] = frozenset(), groups: Set[str] = frozenset()
    ) -> TransactionAnswer:
        return self._take(transactional_id, policy.add(self.rows.get(transactional_id), asked, keys, groups))

    async def end_transaction(
        self, transactional_id: str, asked: ProducerEpoch, *, commits: bool, bumps: bool, new_producer_id: int
    ) -> TransactionAnswer:
        found = self.rows.get(transactional_id)
        step = policy.end(found, asked, commits=commits, bumps=bumps, new_producer_id=new_producer_id)
        return self._take(transactional_id, step)

    async def abort_transaction(self, transactional_id: str, asked: ProducerEpoch) -> TransactionVerdict:
        return self._take(transactional_id, policy.abort(self.rows.get(transactional_id), asked)).verdict

    async def find_transactions(self, transactional_ids: Sequence[str] | None = None) -> list[Transaction]:
        if self.failure is not None:
            raise self.failure
        return [
            row for name, row in sorted(self.rows.items()) if transactional_ids is None or name in transactional_ids
        ]

    def _take(self, transactional_id: str, step: TransactionStep) -> TransactionAnswer:
        failure, self.failure = self.failure, None
        if failure is not None and not isinstance(failure, OutcomeUnknownError):
            raise failure
        if step.after is not None:
            begins = step.after.state is TransactionState.ONGOING
            begun_ms = self.now_ms if begins and step.after.begun_ms < 0 else step.after.begun_ms if begins else -1
            self.rows[transactional_id] = replace(step.after, begun_ms=begun_ms, version=step.after.version + 1)
        if failure is not None:
            raise failure
        return TransactionAnswer(step.verdict, step.producer)
