"""The load of W14 on two agents of one zone: it runs, reads what it sent, and judges by the median round."""

from __future__ import annotations

from pathlib import Path

import pytest

from load.dev_server import DevServer
from tests.hostile.two_agents import PARTITIONS, SETTINGS, ZoneLoad, arguments, print_bars, run

TINY = ["--rounds", "1", "--seconds", "1", "--producers", "20", "--rate", "100"]


@pytest.mark.slow
async def test_hostile_producers_on_two_agents_of_a_zone(tmp_path: Path) -> None:
    """The run itself refuses errors and lost records."""
    with DevServer(tmp_path / "data", agents=2, settings=SETTINGS) as server:
        ((hostile, plain),) = await run(server, arguments(TINY))
    for load in (hostile, plain):
        assert load.batches == len(load.ages) >= PARTITIONS
        assert load.files > 0
        assert load.rpcs > 0, "the agents read each other's files"
        assert load.fallbacks == 0


def _round(age: float, hostile_rpcs: float, plain_rpcs: float) -> tuple[ZoneLoad, ZoneLoad]:
    return ZoneLoad(1, [age], hostile_rpcs, 0, 1), ZoneLoad(1, [9.0], plain_rpcs, 0, 1)


def test_the_bars_are_those_of_the_promise(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_bars([_round(0.3, 300, 100), _round(0.3, 110, 100), _round(0.3, 90, 100)])
    assert "met  requests between agents, idempotent / plain: 1.10 (rounds 3.00 1.10 0.90)" in capsys.readouterr().out
    assert not print_bars([_round(2.0, 100, 100)])
    assert not print_bars([_round(0.3, 111, 100)])
    assert "MISS requests between agents" in capsys.readouterr().out
