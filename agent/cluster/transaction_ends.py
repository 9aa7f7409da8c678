"""Ends what producers left: late transactions are aborted, unused transactional ids are forgotten.

Place: in each round of a controller; looks at its own intervals, while it is active. Its metrics come from the look.
Invariant: an end changes only the version of the transaction that was seen late, so neither a second controller nor the
producer's own EndTxn is in its way: one of them ends it. An id with an open transaction is never forgotten. A
transaction that cannot be ended holds up no other: it is asked for again in each look, after the others.
Source: Kafka's transaction.abort.timed.out.transaction.cleanup.interval.ms and transactional.id.expiration.ms.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.config.settings import Settings
from headrace.metastore.api.transactions import LateTransaction, OpenTransactions
from headrace.storage.clock import Clock
from headrace.storage.errors import FencedError, HeadraceError, OutcomeUnknownError, RetryableError

logger = logging.getLogger(__name__)

PER_ROUND = 100
"""A call ends one transaction: the others wait for the next round, so that the controller's other work continues."""
FORGOTTEN_PER_CALL = 1_000
UNREACHABLE_MAX = 2
"""Calls without an answer in one look, after which it ends; the row of such a transaction may change all the time."""
FAILING_MAX = 10_000
"""Transactional ids that cannot be ended and are asked for besides; Postgres lists the oldest first."""


class TransactionEndApi(Protocol):
    """What it asks of the metastore: see metastore.api.transactions.TransactionApi."""

    async def open_transactions(self, most: int) -> OpenTransactions:
        """Return the open transactions, with up to `most` late ones, the oldest first."""

    async def time_out_transaction(self, late: LateTransaction) -> bool:
        """Return whether it was aborted."""

    async def expire_transactional_ids(self, expiration_ms: int, most: int) -> int:
        """Return how many were forgotten."""


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
    """One per candidate; `step` is called in each round."""

    def __init__(
        self, api: TransactionEndApi, times: Callable[[], EndingTimes], clock: Clock, registry: CollectorRegistry
    ) -> None:
        self._api, self._times, self._clock = api, times, clock
        self._looked_at = self._forgot_at = clock.monotonic()
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

    async def step(self, is_active: bool) -> None:
        """Do what is due; show nothing unless active."""
        if not is_active:
            self._show(OpenTransactions())
            return
        now, times = self._clock.monotonic(), self._times()
        if (now - self._looked_at) * 1000 >= times.late_interval_ms:
            await self._end_late(now)
        if (now - self._forgot_at) * 1000 >= times.expired_interval_ms:
            forgotten = await self._api.expire_transactional_ids(times.expiration_ms, FORGOTTEN_PER_CALL)
            if forgotten:
                logger.info("transactional ids forgotten: ids=%d", forgotten)
            if forgotten < FORGOTTEN_PER_CALL:
                self._forgot_at = now

    async def _end_late(self, now: float) -> None:
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
        if len(found.late) < most:
            self._looked_at = now

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
