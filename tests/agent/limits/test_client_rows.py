"""Limits on rows of the metastore: counted once a minute, new ones are refused, stored ones never."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from kafka.protocol.producer import InitProducerIdRequest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from headrace.agent.limits.client_rows import (
    AGAIN_SECONDS,
    COMMITTED_OFFSETS,
    FRESH_SECONDS,
    TRANSACTIONAL_IDS,
    ClientRows,
)
from headrace.agent.transactions.producer_requests import InitProducerId
from headrace.config.settings import Settings
from headrace.metastore.api.housekeeping import RowCounts
from headrace.storage.errors import UnavailableError
from tests.agent.client_calls import call
from tests.agent.transactions.test_requests import TIMEOUT_MAX_MS
from tests.agent.transactions.test_requests import World as TransactionWorld
from tests.manual_clock import ManualClock

pytestmark = pytest.mark.requirement("X7")
MOST = 10
SETTINGS = Settings(max_transactional_ids=MOST, max_producer_states=MOST, max_committed_offsets=MOST)


class Counted:
    """A metastore that counts what the test says. Fault model: `is_away`."""

    def __init__(self, clock: ManualClock) -> None:
        self.rows = RowCounts(0, 0, 0)
        self.calls = 0
        self.is_away = False
        self.refused: list[str] = []
        self.registry = CollectorRegistry()
        self.limits = ClientRows(self._count, lambda: SETTINGS, clock, self.refused.append, self.registry)

    async def _count(self) -> RowCounts:
        self.calls += 1
        if self.is_away:
            raise UnavailableError("away")
        return self.rows


@pytest.fixture
def counted(fake_clock: ManualClock) -> Counted:
    return Counted(fake_clock)


async def test_requests_are_counted_in_memory_and_rows_once_a_minute(counted: Counted, fake_clock: ManualClock) -> None:
    assert [await counted.limits.has_room(TRANSACTIONAL_IDS) for _ in range(MOST + 2)] == [True] * MOST + [False] * 2
    assert counted.calls == 1, "full, and counted a moment ago"
    assert await counted.limits.has_room(COMMITTED_OFFSETS), "each limit for itself"
    fake_clock.jump(AGAIN_SECONDS)
    assert await counted.limits.has_room(TRANSACTIONAL_IDS), "what it let through was stored before"
    assert counted.calls == 2
    counted.rows = RowCounts(MOST, 0, 0)
    fake_clock.jump(FRESH_SECONDS)
    assert not await counted.limits.has_room(TRANSACTIONAL_IDS)
    assert counted.calls == 3


async def test_a_metastore_that_does_not_answer_refuses_no_client(counted: Counted) -> None:
    counted.is_away = True
    assert await counted.limits.has_room(TRANSACTIONAL_IDS)
    assert counted.calls == 1


async def test_a_warning_at_eighty_percent_once(counted: Counted, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for rows in (7, 8, 9, 7, 8):
            counted.rows = RowCounts(rows, 0, 0)
            await counted.limits.refresh()
    assert [record.getMessage() for record in caplog.records] == [
        f"clients nearly reach a limit of the metastore: limit={TRANSACTIONAL_IDS} rows=8 max={MOST}"
    ] * 2
    shown = {"limit": TRANSACTIONAL_IDS}
    assert counted.registry.get_sample_value("headrace_client_rows", shown) == 8
    assert counted.registry.get_sample_value("headrace_client_rows_limit", shown) == MOST


async def test_new_producers_are_refused_and_stored_ones_are_not(counted: Counted) -> None:
    world = TransactionWorld()
    assert (await world.producer("stored")).error_code == 0
    ids: Any = world
    rows: Any = world.rows
    reasons: list[str] = []
    init = InitProducerId(
        ids, world.view, rows, lambda: TIMEOUT_MAX_MS, lambda _, reason: reasons.append(reason), rows=counted.limits
    )

    async def asked(name: str | None) -> int:
        message = InitProducerIdRequest(
            transactional_id=name, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
        )
        return int((await call(init, message, 4)).error_code)

    counted.rows = RowCounts(MOST, 0, 0)
    assert [await asked(name) for name in ("stored", "new", None)] == [0, ErrorCode.policy_violation, 0]
    counted.rows = RowCounts(0, MOST, 0)
    await counted.limits.refresh()
    full = ErrorCode.policy_violation
    assert [await asked(name) for name in ("stored", "new", None)] == [0, full, full]
    assert counted.refused == ["max.transactional.ids", "max.producer.states", "max.producer.states"]
    assert len(reasons) == 3
