"""How much of a generated history `make test` runs: a few seeds and examples; the nightly run has the others."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

NIGHTLY = "HEADRACE_TEST_NIGHTLY"
"""Set by `make test-all` (tests/run.py)."""


def seeds(everyday: Iterable[int], nightly: Iterable[int]) -> list[Any]:
    """Return the values of a parameter: those of `nightly` are marked slow."""
    return [*everyday, *(pytest.param(seed, marks=pytest.mark.slow) for seed in nightly)]


def first(count: int, nightly: range) -> range:
    """Return the first `count` seeds in `make test`, and all of them in the nightly run."""
    return nightly if os.environ.get(NIGHTLY) else nightly[:count]


def examples(nightly: int) -> int:
    """Return for how many generated examples a property is tried: a half of the nightly run's in `make test`."""
    return nightly if os.environ.get(NIGHTLY) else (nightly + 1) // 2
