"""Log levels of this agent, as Kafka's BROKER_LOGGER resource shows and changes them.

Place: behind DescribeConfigs and IncrementalAlterConfigs.
Invariant: levels are the process's own and last as long as it does, as in Kafka: nothing is recorded. A request
changes all the loggers that it names or none. If the process dies here its successor starts with log.level.
Source: KIP-412.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from headrace.agent.admin.configs.rules import Operation, Wish
from headrace.agent.admin.log_change import Verdict

ROOT = "root"
_PACKAGE = "headrace"
_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_NAMES = {level: name for name, level in _LEVELS.items() if name != "TRACE"}


def levels() -> dict[str, str]:
    """Logger -> its level in Kafka's words, the inherited one where it has none of its own."""
    known = logging.root.manager.loggerDict
    own = sorted(name for name in known if name.partition(".")[0] == _PACKAGE)
    return {name: _level_name(_logger(name)) for name in (ROOT, *own)}


def why_refused(wishes: Sequence[Wish]) -> Verdict:
    """ErrorCode.none for levels that may be set."""
    known = levels()
    for wish in wishes:
        if wish.name not in known:
            return Verdict(ErrorCode.invalid_config, f"there is no such logger: {wish.name}")
        if wish.operation not in (Operation.SET, Operation.DELETE):
            return Verdict(ErrorCode.invalid_request, f"a logger's level is set or deleted: {wish.name}")
        if wish.operation == Operation.SET and (wish.value or "").strip().upper() not in _LEVELS:
            return Verdict(ErrorCode.invalid_config, f"level is not one of {', '.join(_LEVELS)}: {wish.value}")
        if wish.operation == Operation.DELETE and wish.name == ROOT:
            return Verdict(ErrorCode.invalid_request, "the root logger must have a level")
    return Verdict()


def change(wishes: Sequence[Wish]) -> None:
    """Carry out what `why_refused` let pass; a deleted level is inherited again."""
    for wish in wishes:
        deleted = wish.operation == Operation.DELETE
        _logger(wish.name).setLevel(logging.NOTSET if deleted else _LEVELS[(wish.value or "").strip().upper()])


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _level_name(logger: logging.Logger) -> str:
    level = logger.getEffectiveLevel()
    return _NAMES[max((known for known in _NAMES if known <= level), default=logging.DEBUG)]
