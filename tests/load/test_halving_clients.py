"""A topic doubles and halves under librdkafka's own producers and a group: nothing is lost, refused or out of order."""

from __future__ import annotations

from pathlib import Path

import pytest

from load.dev_server import DevServer
from load.halving_clients import run

SECONDS = 40.0


@pytest.mark.slow
@pytest.mark.requirement("X5")
@pytest.mark.timeout(400)
def test_real_producers_keep_the_order_of_their_keys(tmp_path: Path) -> None:
    with DevServer(tmp_path) as server:
        outcome = run(server, SECONDS)
    assert (outcome.lost, outcome.inversions, outcome.failed) == (0, 0, {})
    assert outcome.children_first > 0, "the order of reading matters"
    assert outcome.to_aliases > 0, "librdkafka keeps the higher count"
    assert outcome.merged_ms < outcome.shown_ms
