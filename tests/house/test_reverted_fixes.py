"""Each defence against Postgres going wrong has a test that fails when only that defence is taken out again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.reverted_fixes import REVERSALS


@pytest.mark.slow
@pytest.mark.parametrize("name", REVERSALS)
def test_a_test_fails_without_the_fix(name: str, tmp_path: Path) -> None:
    REVERSALS[name].fails("tests.house.reverted_fixes", name, tmp_path)


@pytest.mark.parametrize("name", REVERSALS)
def test_the_fix_is_there(name: str) -> None:
    REVERSALS[name].has_seam()
