"""Examples of Hypothesis that a seed alone decides, for the planted bugs that generated histories show.

Hypothesis mixes constants of all imported modules of this repository into what it draws, so the same seed means
another example if other tests were imported before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers

EXAMPLES = 12
"""Examples of one seed: the first ones that Hypothesis generates are small."""
FEW = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    phases=[Phase.generate],
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
"""A failing example is not made smaller, and not remembered."""


@contextmanager
def by_seed_alone() -> Iterator[None]:
    """Draw by the seed alone: what is drawn does not depend on the modules that are imported."""
    providers.CONSTANTS_CACHE.cache.clear()
    with mock.patch.object(providers, "_get_local_constants", providers.Constants):  # type: ignore[attr-defined]
        yield
    providers.CONSTANTS_CACHE.cache.clear()
