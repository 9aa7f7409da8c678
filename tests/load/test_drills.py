"""The drills' report: what counts as new, what counts failures, and how the clients are judged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.drills import operator_week
from tests.drills.__main__ import main
from tests.drills.clients import PARTITIONS, DrillClients
from tests.drills.operator import Findings, moved, warnings, worse
from tests.drills.run import SCRIPTS
from tests.drills.states import STATES
from tests.flood.scripts import FLOODS

ROOT = Path(__file__).resolve().parents[2]
SOUND: Findings = {("postgres", "connect"): ("ok", "0.3 ms"), ("host", "cores"): ("warn", "2 cores")}
LOG = """\
2026-11-23 22:00:00,000 INFO headrace.agent.serve.broker ready
2026-11-23 22:00:01,000 WARNING headrace.agent.fetch.index.feed feed poll failed: error=away left_out=3
2026-11-23 22:00:02,000 WARNING headrace.agent.fetch.index.feed feed poll failed: error=still away
2026-11-23 22:00:03,000 ERROR headrace.storage.objects store unreachable: key=1
"""


def test_only_findings_that_were_not_there_before_are_shown() -> None:
    now = SOUND | {("postgres", "connect"): ("bad", "refused"), ("bucket", "put"): ("warn", "slow")}
    assert worse(SOUND, now) == ["bad  postgres connect: refused", "warn bucket put: slow"]
    assert worse(now, SOUND) == []


def test_metrics_that_count_failures_and_rose_are_shown() -> None:
    before = {"headrace_produce_commit_failures_total": 2.0, "headrace_produce_bytes_total": 5.0}
    after = {"headrace_produce_commit_failures_total": 5.0, "headrace_produce_bytes_total": 900.0}
    assert moved(before, after) == ["headrace_produce_commit_failures_total +3"]
    assert moved(after, after) == []


def test_warnings_are_shown_once_of_each_kind() -> None:
    assert warnings(LOG) == [
        "  2 x WARNING agent.fetch.index.feed feed poll failed: error=away left_out=3",
        "  1 x ERROR storage.objects store unreachable: key=1",
    ]
    assert len(warnings("".join(f"ERROR headrace.part{n} {chr(97 + n)} failed\n" for n in range(9)))) == 7


@pytest.mark.parametrize(
    ("consumed", "line"),
    [
        ([0, 1, 6, 7], "read in order, acknowledged and missing: 0, twice: 0"),
        ([6, 1, 0, 7], "read OUT OF ORDER"),
        ([0, 1, 6, 6, 7], "twice: 1"),
        ([0, 1, 6], "acknowledged and missing: 1"),
    ],
)
def test_clients_are_judged_by_partition(consumed: list[int], line: str) -> None:
    assert PARTITIONS == 6
    clients = DrillClients("nowhere:1")
    clients.acknowledged, clients.consumed = [0, 1, 6, 7], consumed
    assert line in clients.lines()[1]
    assert clients.are_sound is (consumed == [0, 1, 6, 7])


def test_each_script_says_what_it_does() -> None:
    for script in (*SCRIPTS.values(), *FLOODS.values()):
        assert script.__doc__
        assert "\n" not in script.__doc__


def test_each_state_of_the_week_names_a_line_of_the_doctor() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "cli" / "doctor").glob("*.py"))
    for state in STATES:
        for area, check, _ in filter(None, (state.names, state.later)):
            assert f'Area("{area}")' in sources, state.title
            assert f'"{check}"' in sources, state.title


@pytest.mark.slow
def test_a_drill_of_a_lost_agent(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["drills", "agent_lost"])
    assert main() == 0
    assert "recovered without hands" in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.requirement("X15")
@pytest.mark.parametrize(
    "store",
    [
        pytest.param("azure", marks=pytest.mark.needs("azurite")),
        pytest.param("google", marks=pytest.mark.needs("fake-gcs-server")),
    ],
)
def test_drills_with_the_bucket_on_a_cloud(
    store: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["drills", "--store", store, "bucket_unavailable", "puts_denied", "restored"])
    assert main() == 0
    printed = capfd.readouterr().out
    assert printed.count("recovered without hands") == 2
    assert "0 of them missing" in printed


def test_a_drill_that_raises_has_failed_and_the_week_goes_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def drill(name: str, write: Callable[[str], None]) -> bool:
        if name == "zone_lost":
            raise RuntimeError("a program of the rig is missing")
        return name == "agent_lost"

    monkeypatch.setattr(operator_week, "run_drill", drill)
    monkeypatch.setattr("sys.argv", ["operator_week", "zone_lost", "wrong_clock", "agent_lost"])
    assert operator_week.main() == 1
    printed = capfd.readouterr().out
    assert "a program of the rig is missing" in printed
    verdicts = [line.split()[:2] for line in printed.partition("== the week")[2].splitlines()[1:4]]
    assert verdicts == [["zone_lost", "FAILED"], ["wrong_clock", "FAILED"], ["agent_lost", "passed"]]
    monkeypatch.setattr("sys.argv", ["operator_week", "agent_lost"])
    assert operator_week.main() == 0
