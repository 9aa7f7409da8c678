"""A topic doubles under librdkafka's own producers, which know only the count: no record is lost or out of order."""

from __future__ import annotations

from pathlib import Path

import pytest

from load.dev_server import DevServer
from load.doubling_clients import BOUNDARY_QUIET_MS, PRODUCER_QUIET_MS, run

SECONDS = 30.0


@pytest.mark.slow
@pytest.mark.requirement("X5")
@pytest.mark.timeout(300)
def test_real_producers_keep_the_order_of_their_keys(tmp_path: Path) -> None:
    with DevServer(tmp_path) as server:
        outcome = run(server, SECONDS)
    assert (outcome.lost, outcome.inversions, outcome.failed) == (0, 0, {})
    assert outcome.at_once > 0, "the order of reading matters"
    assert len(outcome.first_in_child_ms) == 5, "every producer reached a child"
    assert outcome.boundary_ms > BOUNDARY_QUIET_MS > PRODUCER_QUIET_MS
