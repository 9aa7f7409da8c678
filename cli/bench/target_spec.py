"""What `--target` and `--vs` name: a system to measure, and how to start or reach it.

Place: read by command.py, used by targets.py. Pure.
Form: [NAME=]KIND [KEY=VALUE ...], split as a shell does, with KIND one of
  dev              this Headrace: agents, a compactor, an embedded Postgres, a directory or S3 server as bucket
  headrace:COMMAND another Headrace, started by its command, or by .venv/bin/headrace of a checkout
  kafka[:DIR]      Apache Kafka from the jars in DIR (default: --kafka)
  HOST:PORT,...    a running cluster
KEY=VALUE are settings of what is started, or options of target_options.py. Of a running cluster they say what can be
measured: `http=HOST:PORT` for /metrics and `pid=N` for CPU and memory; http_access.py has the settings of an HTTP port
with TLS or authentication.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from headrace.cli.bench.target_options import OF_DEV, OF_HEADRACE, OF_KAFKA, TargetOptions, read_options
from headrace.cli.client.transport import parse_servers
from headrace.config.errors import ConfigError

DEV, HEADRACE, KAFKA, RUNNING = "dev", "headrace", "kafka", "running"
OPTIONS = {DEV: OF_DEV, HEADRACE: OF_HEADRACE, KAFKA: OF_KAFKA}
_NAMED = re.compile(r"([A-Za-z0-9_.-]+)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """One target; `where` is a command, a folder or addresses, as its kind needs it. `settings`: all KEY=VALUE."""

    name: str
    kind: str
    where: str = ""
    settings: dict[str, str] = field(default_factory=dict)

    def options(self) -> TargetOptions:
        """Return what its kind has besides settings. ConfigError for values out of range."""
        return read_options(self.settings, OPTIONS.get(self.kind, frozenset()))

    def passed_on(self) -> dict[str, str]:
        """Return the settings of the processes that are started."""
        own = OPTIONS.get(self.kind, frozenset())
        return {key: value for key, value in self.settings.items() if key not in own}


def parse_target(text: str) -> TargetSpec:
    """ConfigError for another form."""
    try:
        first, *rest = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"not a target: {text!r}: {error}") from error
    name, what = match.groups() if (match := _NAMED.fullmatch(first)) else ("", first)
    settings = {}
    for word in rest:
        key, separator, value = word.partition("=")
        if not separator or not key:
            raise ConfigError(f"not a setting of the form key=value: {word!r} in target {text!r}")
        settings[key] = value
    kind, where = _kind(what)
    spec = TargetSpec(name or kind, kind, where, settings)
    spec.options()
    return spec


def headrace_command(where: str) -> list[str]:
    """The command of a `headrace:` target; a folder is a checkout with its own environment."""
    if (path := Path(where)).is_dir():
        return [str(path.absolute() / ".venv" / "bin" / "headrace")]
    return shlex.split(where)


def _kind(what: str) -> tuple[str, str]:
    if what in (DEV, KAFKA):
        return what, ""
    kind, _, where = what.partition(":")
    if kind in (HEADRACE, KAFKA) and where and not where.isdecimal():
        return kind, where
    if ":" in what:
        parse_servers(what)
        return RUNNING, what
    raise ConfigError(f"not a target: {what!r} (dev, headrace:COMMAND, kafka[:DIR] or HOST:PORT)")
