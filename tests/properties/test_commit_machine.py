"""Postgres judges, orders and announces as the reference model does, over random histories."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.properties.commit_machine import machine_on
from tests.seeds import examples


@pytest.mark.requirement("W4", "W7", "W8")
def test_commit_answers_as_the_model_does(metastore_url: str) -> None:
    with machine_on(metastore_url) as machine:
        run_state_machine_as_test(machine, settings=settings(max_examples=examples(60), stateful_step_count=30))


@pytest.mark.slow
def test_commit_answers_as_the_model_does_over_long_histories(metastore_url: str) -> None:
    with machine_on(metastore_url) as machine:
        run_state_machine_as_test(machine, settings=settings(max_examples=150, stateful_step_count=60))
