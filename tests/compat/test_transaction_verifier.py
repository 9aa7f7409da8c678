"""An independent look at transactions: the same nineteen scenarios in Java against two agents and against Apache Kafka.

Fault model: none but the client's own: transactions that abort, overlap, hang or are taken over. What holds for Kafka
has to hold here; TransactionVerifier.java knows nothing of either.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from load.dev_server import DevServer
from tests.compat.conftest import SETTINGS
from tests.compat.kafka_server import kafka_server
from tests.java_program import run_java
from tests.tools import JAVA_LIBRARIES

pytestmark = [
    pytest.mark.needs("java"),
]
HERE = Path(__file__).parent
SCENARIOS = 19


def verify(bootstrap: str, *scenarios: str) -> list[str]:
    """Return what it prints of each scenario, of all without a name."""
    program, parts = HERE / "TransactionVerifier.java", [HERE / "VerifierClients.java"]
    done = run_java(program, f"{JAVA_LIBRARIES}/*", bootstrap, *scenarios, parts=parts)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_two_agents_pass_every_scenario(server: DevServer) -> None:
    lines = verify(server.bootstrap)
    assert [line for line in lines if not line.startswith("passed ")] == []
    assert len(lines) == SCENARIOS


@pytest.mark.slow
@pytest.mark.needs("kafka")
def test_kafka_passes_the_same(tmp_path: Path) -> None:
    with kafka_server(tmp_path) as bootstrap:
        lines = verify(bootstrap)
    assert [line for line in lines if not line.startswith("passed ")] == []
    assert len(lines) == SCENARIOS


@pytest.mark.slow
def test_it_notices_a_broker_that_refuses_transactions(tmp_path: Path) -> None:
    """A planted mistake: their timeout may not be longer than 100 ms."""
    settings = SETTINGS | {"transaction.max.timeout.ms": 100}
    with DevServer(tmp_path, agents=1, settings=settings) as server:
        (line,) = verify(server.bootstrap, "tx")
    assert line.startswith("failed tx: ")
