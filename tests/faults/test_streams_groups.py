"""The coordinator of a streams group is killed or drained: its threads go on with their tasks, without a rebalance.

Fault model: SIGKILL and SIGTERM of the agent that holds the group, of two; of three behind one address, SIGKILL.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.agent.cluster.routing import group_role, score
from headrace.cli.main import main
from headrace.storage.errors import UnavailableError
from tests.agent_process import AgentUnderTest
from tests.compat.apps.streams_run import QUICK, RECORDS, Program, Run
from tests.compat.test_streams_answers import AT_ONCE, Asked, group_of, plan, said, sub, tasks
from tests.faults.shared_cluster import shared_cluster
from tests.tools import KAFKA_APPS
from tests.waiting import until

Pair = tuple[AgentUnderTest, AgentUnderTest]
NOTHING: dict[str, Any] = {"standby_tasks": (), "warmup_tasks": ()}


@pytest.fixture
def pair(agent_settings: dict[str, object]) -> Iterator[Pair]:
    settings = {**agent_settings, **AT_ONCE, "broker.session.timeout.ms": 3_000}
    with AgentUnderTest(settings) as first, AgentUnderTest(settings) as second:
        yield first, second


def _group_at(home: AgentUnderTest, other: AgentUnderTest) -> str:
    """Return the id of a group that prefers `home`."""
    names = (f"threads-{number}" for number in itertools.count())
    return next(name for name in names if _score(home, name) > _score(other, name))


def _score(agent: AgentUnderTest, group: str) -> int:
    return score(agent.node_id, group_role(group))


def _answered(ask: Callable[[], Any]) -> Any:
    """Ask until an agent is the coordinator."""
    found: list[Any] = []

    def attempt() -> bool:
        with contextlib.suppress(UnavailableError):
            found.append(ask())
        return bool(found)

    until(attempt, "no agent became the coordinator")
    return found[0]


FAULTS: dict[str, Callable[[AgentUnderTest], object]] = {"killed": AgentUnderTest.kill, "drained": AgentUnderTest.stop}


@pytest.mark.requirement("X16")
@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=() if fault == "killed" else pytest.mark.slow) for fault in FAULTS]
)
def test_threads_carry_on_under_the_next_coordinator(pair: Pair, fault: str) -> None:
    home, heir = pair
    group = _group_at(home, heir)
    assert main(["topics", "create", "words", "--partitions", "2", "-b", home.kafka]) == 0
    words = plan(sub("0", "words"))
    with ExitStack() as stack:
        of = Asked(home.kafka, stack)
        assert said(of.join(group, "a", words))["active"] == [("0", [0, 1])]
        of.join(group, "b", words)
        of.beat(group, "a", 2)
        assert of.beat(group, "a", 2, active_tasks=tasks(s0=[0]), **NOTHING).member_epoch == 3
        assert said(of.beat(group, "b", 3))["active"] == [("0", [1])]
        before = group_of(of.describe(group)[0])
    assert before["state"] == "Stable"

    FAULTS[fault](home)
    with ExitStack() as stack:
        of = Asked(heir.kafka, stack)
        for member in "ab":
            answer = _answered(partial(of.beat, group, member, 3, endpoint_information_epoch=0))
            assert (answer.error_code, answer.member_epoch, answer.active_tasks) == (0, 3, None)
        assert group_of(of.describe(group)[0]) == before
        of.beat(group, "a", -1)
        assert said(of.beat(group, "b", 3))["active"] == [("0", [0, 1])]


@pytest.mark.slow
@pytest.mark.needs("kafka-apps")
@pytest.mark.requirement("X3", "X16")
def test_an_application_behind_one_address(agent_settings: dict[str, object], tmp_path: Path) -> None:
    """Kafka Streams sees one node; each of its connections comes to any of three agents."""
    settings = {**agent_settings, **QUICK, "linger.ms": 25, "broker.session.timeout.ms": 3_000}
    half = RECORDS // 2
    program = Program.compiled(tmp_path / "classes", KAFKA_APPS)
    with shared_cluster(settings, 3) as cluster:
        run = Run(cluster.address, "rekeyed", program, tmp_path)
        with run.app(1) as first, run.app(2) as second:
            run.produce(slice(0, half))
            first.until(lambda: run.is_done(half), "the first half is done")
            killed = cluster.coordinator("streams")
            killed.kill()
            cluster.agents.remove(killed)
            run.produce(slice(half, RECORDS))
            second.until(lambda: run.is_done(RECORDS), "the application goes on")
            assert cluster.coordinator("streams") is not killed
        cluster.agents.append(killed)
