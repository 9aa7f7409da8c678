"""A short run of `make torture-streams`: an application of Kafka Streams counts each word once, under every fault.

Fault model: tests/torture/faults.py, every kind; instances of the application are killed, stopped, and paused, also for
longer than their session.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.streams_torture.run import StreamsPlan, torture


@pytest.mark.slow
@pytest.mark.needs("kafka-apps")
@pytest.mark.requirement("X16")
def test_each_word_is_counted_once(tmp_path: Path) -> None:
    outcome = asyncio.run(torture(StreamsPlan(seed=1071, seconds=60), tmp_path))
    assert outcome.offences == []
    assert outcome.lines > 0
    struck = {fault.split()[0] for fault in outcome.injected if fault.endswith(" instance")}
    assert struck == {"kill", "stop", "pause"}, outcome.injected
    assert outcome.injected["kill"], "no agent was killed"
