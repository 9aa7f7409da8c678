"""Log levels of this agent, shown and changed as Kafka's BROKER_LOGGER resource.

Place: under DescribeConfigs and IncrementalAlterConfigs.
Invariant: levels belong to the process and are not stored, as in Kafka: after a restart log.level applies. A request
changes all loggers that it names or none.
Source: KIP-412.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import Verdict
from headrace.agent.topics.configs.rules import Operation, Wish

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
    """Logger -> its level in Kafka's words; the inherited level if it has none."""
    known = logging.root.manager.loggerDict
    own = sorted(name for name in known if name.partition(".")[0] == _PACKAGE)
    return {name: _level_name(_logger(name)) for name in (ROOT, *own)}


def why_refused(wishes: Sequence[Wish]) -> Verdict:
    """ErrorCode.none for valid changes."""
    known = levels()
    for wish in wishes:
        if wish.name not in known:
            return Verdict(ErrorCode.invalid_config, f"logger does not exist: {wish.name}")
        if wish.operation not in (Operation.SET, Operation.DELETE):
            return Verdict(ErrorCode.invalid_request, f"a log level can only be set or deleted: {wish.name}")
        if wish.operation == Operation.SET and (wish.value or "").strip().upper() not in _LEVELS:
            return Verdict(ErrorCode.invalid_config, f"level is not one of {', '.join(_LEVELS)}: {wish.value}")
        if wish.operation == Operation.DELETE and wish.name == ROOT:
            return Verdict(ErrorCode.invalid_request, "the root logger must have a level")
    return Verdict()


def change(wishes: Sequence[Wish]) -> None:
    """Apply changes that `why_refused` accepted; a deleted level is inherited again."""
    for wish in wishes:
        deleted = wish.operation == Operation.DELETE
        _logger(wish.name).setLevel(logging.NOTSET if deleted else _LEVELS[(wish.value or "").strip().upper()])


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _level_name(logger: logging.Logger) -> str:
    level = logger.getEffectiveLevel()
    return _NAMES[max((known for known in _NAMES if known <= level), default=logging.DEBUG)]
