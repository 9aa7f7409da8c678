"""Each bound on what clients make agents and Postgres keep has a test that fails when only that bound is taken out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.reverted_bounds import REVERSALS


@pytest.mark.slow
@pytest.mark.parametrize("name", REVERSALS)
def test_a_test_fails_without_the_bound(name: str, tmp_path: Path) -> None:
    REVERSALS[name].fails("tests.house.reverted_bounds", name, tmp_path)


@pytest.mark.parametrize("name", REVERSALS)
def test_the_bound_is_there(name: str) -> None:
    REVERSALS[name].has_seam()
