"""A topic doubles under real producers and groups, which know only the count: no record is lost or out of order."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.metastore.partitions.splitting import PRODUCER_QUIET_MS
from load.dev_server import DevServer
from tests.growth.doubling_clients import BOUNDARY_QUIET_MS, SETTINGS, DoublingOutcome, run
from tests.growth.doubling_readers import compile_java

SECONDS = 30.0


@pytest.mark.slow
@pytest.mark.requirement("X5")
def test_librdkafkas_clients_keep_the_order_of_their_keys(tmp_path: Path) -> None:
    with DevServer(tmp_path, settings=SETTINGS) as server:
        outcome = run(server, SECONDS)
    check(outcome)
    assert len(outcome.first_in_child_ms) == 5, "every producer reached a child"


@pytest.mark.slow
@pytest.mark.requirement("X5")
@pytest.mark.needs("kafka-clients")
def test_so_do_javas_with_two_agents(tmp_path: Path) -> None:
    classes = tmp_path / "classes"
    compile_java(classes)
    with DevServer(tmp_path / "dev", agents=2, settings=SETTINGS) as server:
        outcome = run(server, SECONDS, classes)
    check(outcome)
    assert outcome.by_java > 0


def check(outcome: DoublingOutcome) -> None:
    """Refused are only moved keys of a producer that has switched, when its queue did not move for longer than 2 s."""
    assert (outcome.lost, outcome.inversions) == (0, 0)
    assert (outcome.not_delivered, outcome.delivered_late) == (0, 0)
    assert sum(outcome.failed.values()) < outcome.acknowledged / 100
    assert all(error.endswith(("INVALID_RECORD", "InvalidRecordException")) for error in outcome.failed)
    assert outcome.at_once > 0, "the order of reading matters"
    assert outcome.boundary_ms > BOUNDARY_QUIET_MS > PRODUCER_QUIET_MS
