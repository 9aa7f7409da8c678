"""A topic doubles and halves under librdkafka's own producers and a group: nothing is lost or out of order."""

from __future__ import annotations

from pathlib import Path

import pytest

from load.dev_server import DevServer
from tests.growth.alternating_clients import SETTINGS, run

TIMES = 2


@pytest.mark.slow
@pytest.mark.requirement("X5")
def test_real_producers_keep_the_order_of_their_keys(tmp_path: Path) -> None:
    """A record that fails was reported to its producer, which waited for less than until the topic doubles again."""
    with DevServer(tmp_path, agents=2, settings=SETTINGS) as server:
        outcome = run(server, TIMES)
    assert (outcome.not_delivered, dict(outcome.late)) == (0, {})
    assert len(outcome.seconds) == 2 * TIMES
    assert sum(outcome.failed.values()) < outcome.acknowledged / 100
