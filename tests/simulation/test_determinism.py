"""A seed is a schedule: the same history, byte for byte, whenever and wherever it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.seeds import FIRST_SEED_WITH_CLEANING, FIRST_SEED_WITH_SEGMENTS
from tests.simulation.world import simulate

ROOT = Path(__file__).resolve().parents[2]
SEEDS = range(300, 325)
SEEDS_EACH_WAY = [*SEEDS[:4], *range(FIRST_SEED_WITH_SEGMENTS, FIRST_SEED_WITH_SEGMENTS + 2)]
MANY_SEEDS_EACH_WAY = [*SEEDS, *range(FIRST_SEED_WITH_SEGMENTS, FIRST_SEED_WITH_SEGMENTS + 5)]
DIGESTS = "from tests.simulation.world import simulate; print([simulate(seed).digest for seed in %s])"


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(SEEDS[:6], id="first"),
        pytest.param(range(FIRST_SEED_WITH_CLEANING, FIRST_SEED_WITH_CLEANING + 5), id="with-cleaning"),
        pytest.param(range(FIRST_SEED_WITH_SEGMENTS, FIRST_SEED_WITH_SEGMENTS + 5), id="with-keys"),
    ],
)
def test_a_seed_gives_the_same_history_again(seeds: range) -> None:
    first = [simulate(seed).digest for seed in seeds]
    assert [simulate(seed).digest for seed in seeds] == first
    assert len(set(first)) == len(seeds)


@pytest.mark.parametrize(
    ("seeds", "hash_seeds"),
    [
        pytest.param(SEEDS_EACH_WAY, ["1"], id="few"),
        pytest.param(MANY_SEEDS_EACH_WAY, ["1", "2"], id="many", marks=pytest.mark.slow),
    ],
)
def test_a_seed_gives_the_same_history_in_another_process(seeds: list[int], hash_seeds: list[str]) -> None:
    """Where strings hash differently and objects have other addresses."""
    found = []
    for hash_seed in hash_seeds:
        run = subprocess.run(
            [sys.executable, "-c", DIGESTS % seeds],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(run.stdout.strip())
    assert found == [str([simulate(seed).digest for seed in seeds])] * len(hash_seeds)
