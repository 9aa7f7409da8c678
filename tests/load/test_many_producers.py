"""tests/hostile/many_producers.py judges by the median round: one round that other work disturbed decides nothing."""

from __future__ import annotations

import pytest

from tests.hostile.many_producers import MODES, Result, print_bars


def _rounds(*cpu_us: tuple[float, float]) -> list[Result]:
    """Rounds of so many microseconds of agent and of Postgres."""
    same = {"batches_per_file": 400.0, "stored_bytes_per_batch": 170.0, "inline_share": 0.0}
    return [Result(agent, postgres, acks=[0.1], ages=[0.2], **same) for agent, postgres in cpu_us]


def _told(idempotent: list[Result], plain: list[Result], capsys: pytest.CaptureFixture[str]) -> str:
    print_bars(dict(zip((mode.name for mode in MODES), (idempotent, plain, plain), strict=True)))
    return capsys.readouterr().out


def test_one_disturbed_round_decides_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    told = _told(
        _rounds((60.0, 20.0), (31.0, 11.0), (30.0, 10.0)), _rounds((30.0, 5.0), (30.0, 5.0), (30.0, 5.0)), capsys
    )
    assert "met  CPU idempotent / plain unmerged: 1.20 (rounds 2.29 1.20 1.14) (bar 1.3)" in told
    assert "met  agent CPU per idempotent batch: 31.0 µs (bar 40 µs)" in told
    assert "agent alone: 1.03 (rounds 2.00 1.03 1.00)" in told


def test_a_bar_that_most_rounds_miss_is_missed(capsys: pytest.CaptureFixture[str]) -> None:
    told = _told(
        _rounds((41.0, 11.0), (41.0, 11.0), (20.0, 5.0)), _rounds((30.0, 5.0), (30.0, 5.0), (30.0, 5.0)), capsys
    )
    assert "MISS CPU idempotent / plain unmerged: 1.49" in told
    assert "MISS agent CPU per idempotent batch: 41.0 µs" in told
