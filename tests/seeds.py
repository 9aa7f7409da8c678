"""The seeds of a generated history: a few for `make test`, the others for the nightly run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def seeds(everyday: Iterable[int], nightly: Iterable[int]) -> list[Any]:
    """Return the values of a parameter: those of `nightly` are marked slow."""
    return [*everyday, *(pytest.param(seed, marks=pytest.mark.slow) for seed in nightly)]
