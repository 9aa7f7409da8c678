"""The alarm hears the loggers of the code that schedules run."""

from __future__ import annotations

import logging

from headrace.agent.produce import commit
from headrace.compactor import merge
from tests.simulation.alarm import alarm
from tests.simulation.problems import Kind


def test_a_traceback_in_the_log_of_any_package_is_a_problem() -> None:
    heard: list[tuple[Kind, str]] = []
    with alarm(lambda kind, detail: heard.append((kind, detail))):
        for module in (commit, merge):
            try:
                raise KeyError("unexpected")
            except KeyError:
                logging.getLogger(module.__name__).exception("failed")
            logging.getLogger(module.__name__).error("expected")
    assert heard == [(Kind.CRASHED, "failed: KeyError('unexpected')")] * 2
