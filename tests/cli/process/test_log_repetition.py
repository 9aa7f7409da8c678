"""Warnings that repeat are counted, and what differs is still written."""

from __future__ import annotations

import io
import logging

import pytest

from headrace.cli.process.logs import AUDIT, TEMPLATE_LINES, RepetitionFilter
from headrace.storage.repetition import LIMITED, SECONDS
from tests.manual_clock import ManualClock


class Log:
    """Lines of a handler with the filter."""

    def __init__(self, clock: ManualClock) -> None:
        self.text = io.StringIO()
        handler = logging.StreamHandler(self.text)
        handler.addFilter(RepetitionFilter(clock))
        self.logger, self.audit = logging.Logger("headrace.test"), logging.Logger(AUDIT)
        for logger in (self.logger, self.audit):
            logger.addHandler(handler)

    @property
    def lines(self) -> list[str]:
        return self.text.getvalue().splitlines()


@pytest.fixture
def log(fake_clock: ManualClock) -> Log:
    return Log(fake_clock)


def test_an_outage_is_a_line_per_condition_and_a_count(log: Log, fake_clock: ManualClock) -> None:
    for attempt in range(40):
        log.logger.warning("commit failed: attempt=%d error=%s", attempt, "no connection")
        log.logger.error("heartbeat failed: 100% sure")
        fake_clock.jump(0.4)
    assert log.lines == ["commit failed: attempt=0 error=no connection", "heartbeat failed: 100% sure"]
    fake_clock.jump(SECONDS)
    log.logger.warning("commit failed: attempt=%d error=%s", 41, "no connection")
    log.logger.error("heartbeat failed: 100% sure")
    assert log.lines[2:] == [
        "commit failed: attempt=41 error=no connection left_out=39",
        "heartbeat failed: 100% sure left_out=39",
    ]


def test_other_values_are_other_conditions_up_to_a_limit(log: Log) -> None:
    for step in "abcdefgh":
        log.logger.warning("housekeeping failed: step=%s", step)
    assert log.lines == [f"housekeeping failed: step={step}" for step in "abcdefgh"[:TEMPLATE_LINES]]


def test_what_is_not_limited(log: Log) -> None:
    for _ in range(3):
        log.logger.info("job ended")
        log.logger.warning("request refused", extra=LIMITED)
        log.audit.info('{"event": "denied"}')
        log.audit.warning('{"event": "denied"}')
    assert len(log.lines) == 12
