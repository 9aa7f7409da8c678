"""Agents' log lines during a schedule: all are silenced, but one that carries a traceback is a problem.

A traceback in the log means that an unexpected exception was caught.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from tests.simulation.problems import Kind

LOGGERS = ("headrace",)


class _Alarm(logging.Handler):
    def __init__(self, report: Callable[[Kind, str], None]) -> None:
        super().__init__(logging.ERROR)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self._report(Kind.CRASHED, f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextlib.contextmanager
def alarm(report: Callable[[Kind, str], None]) -> Iterator[None]:
    """Learn of tracebacks as long as the block runs."""
    handler = _Alarm(report)
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.ERROR)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
