"""Ends what producers left: late transactions are aborted, unused transactional ids are forgotten.

Place: two rows of controller.py's table, with these intervals. The metrics come from the look for late ones.
Invariant: an end changes only the version of the transaction that was seen late, so neither a second controller nor the
producer's own EndTxn is in its way: one of them ends it. An id with an open transaction is never forgotten. A
transaction that cannot be ended holds up no other: it is asked for again in each look, after the others.
Source: Kafka's transaction.abort.timed.out.transaction.cleanup.interval.ms and transactional.id.expiration.ms.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.config.settings import Settings
from headrace.metastore.api.transactions import LateTransaction, OpenTransactions, TransactionApi
from headrace.storage.errors import FencedError, HeadraceError, OutcomeUnknownError, RetryableError

logger = logging.getLogger(__name__)

PER_ROUND = 100
"""A call ends one transaction: the others wait for the next round, so that the controller's other work continues."""
FORGOTTEN_PER_CALL = 1_000
UNREACHABLE_MAX = 2
"""Calls without an answer in one look, after which it ends; the row of such a transaction may change all the time."""
FAILING_MAX = 10_000
"""Transactional ids that cannot be ended and are asked for besides; Postgres lists the oldest first."""


class EndingTimes(NamedTuple):
    """The times that end transactions, in ms, as they are set now."""

    late_interval_ms: int
    expired_interval_ms: int
    expiration_ms: int

    @classmethod
    def of(cls, settings: Settings) -> EndingTimes:
        """Read the settings of these names."""
        return cls(
            settings.transaction_timed_out_interval_ms,
            settings.transaction_expired_interval_ms,
            settings.transactional_id_expiration_ms,
        )


class TransactionEnds:
    """One per candidate."""

    def __init__(self, api: TransactionApi, times: Callable[[], EndingTimes], registry: CollectorRegistry) -> None:
        self._api, self._times = api, times
        self._failing: set[str] = set()
        """Transactional ids with a late transaction that could not be ended in the last look."""
        self._open = Gauge(
            "headrace_transactions_open", "Open transactions, on the active controller", registry=registry
        )
        self._oldest = Gauge(
            "headrace_transactions_oldest_seconds",
            "How long the oldest open transaction is open, on the active controller; 0 without one",
            registry=registry,
        )
        self._late = Gauge(
            "headrace_transactions_late",
            "Transactions past their timeout that are not aborted yet, on the active controller",
            registry=registry,
        )
        self._timed_out = Counter(
            "headrace_transactions_timed_out_total",
            "Transactions that this controller aborted because of their timeout",
            registry=registry,
        )
        self._failed = Gauge(
            "headrace_transactions_unending",
            "Late transactions that cannot be aborted, on the active controller: its log says why",
            registry=registry,
        )

    def stand_by(self) -> None:
        """Show nothing."""
        self._show(OpenTransactions())

    def late_pause(self) -> float:
        """Return the seconds between two looks for late ones."""
        return self._times().late_interval_ms / 1000

    def unused_pause(self) -> float:
        """Return the seconds between two looks for unused ids."""
        return self._times().expired_interval_ms / 1000

    async def forget_unused(self, *_: object) -> bool:
        """Forget transactional ids. True: there may be more."""
        forgotten = await self._api.expire_transactional_ids(self._times().expiration_ms, FORGOTTEN_PER_CALL)
        if forgotten:
            logger.info("transactional ids forgotten: ids=%d", forgotten)
        return forgotten == FORGOTTEN_PER_CALL

    async def end_late(self, *_: object) -> bool:
        """Abort late transactions, and show what is open. True: there are more."""
        most = PER_ROUND + len(self._failing)
        found = await self._api.open_transactions(most)
        self._show(found)
        unreachable = 0
        left = sorted(found.late, key=lambda late: late.transactional_id in self._failing)
        self._failing &= {each.transactional_id for each in left}
        for each in left:
            try:
                await self._end(each)
                self._failing.discard(each.transactional_id)
            except HeadraceError as error:
                self._fails(each.transactional_id, error)
                unreachable += isinstance(error, (RetryableError, OutcomeUnknownError))
                if unreachable == UNREACHABLE_MAX or isinstance(error, FencedError):
                    raise
        self._failed.set(len(self._failing))
        self._late.set(found.late_count - len(found.late) + len(self._failing))
        return len(found.late) == most

    def _fails(self, transactional_id: str, error: HeadraceError) -> None:
        logger.error("late transaction not aborted: transactional_id=%s error=%s", transactional_id, error)
        if len(self._failing) < FAILING_MAX:
            self._failing.add(transactional_id)

    async def _end(self, late: LateTransaction) -> None:
        if await self._api.time_out_transaction(late):
            self._timed_out.inc()
            logger.warning("transaction timed out: transactional_id=%s", late.transactional_id)

    def _show(self, found: OpenTransactions) -> None:
        self._open.set(found.open)
        self._oldest.set(found.oldest_ms / 1000)
        self._late.set(found.late_count)
        if not found.late_count:
            self._failed.set(0)
