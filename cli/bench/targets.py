"""The systems that are measured: named by `--target` or `--vs`, started or reached, with their processes.

Place: command.py reads the words; run.py opens targets one after the other, and closes them in reverse.
Invariant of options: a key that its kind of target does not have is a setting of what is started, and passed on as
it is.
Form of a target's words: [NAME=]KIND [KEY=VALUE ...], split as a shell does, with KIND one of
  dev              this Headrace: agents, a compactor, an embedded Postgres, a directory or S3 server as bucket
  headrace:COMMAND another Headrace, started by its command, or by .venv/bin/headrace of a checkout
  kafka[:DIR]      Apache Kafka from the jars in DIR (default: --kafka)
  HOST:PORT,...    a running cluster
KEY=VALUE are settings of what is started, or options. Of a running cluster they say what can be measured:
`http=HOST:PORT` for /metrics, with the settings of an HTTP port with TLS or authentication, and `pid=N` for CPU and
memory.
Invariant: what is started here ends here, by process id, and its data is in the folder that the caller gives.
"""

from __future__ import annotations

import math
import re
import shlex
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import Request, urlopen

import msgspec

from headrace.config.errors import ConfigError
from headrace.protocol.client.transport import parse_servers
from headrace.storage.errors import UnavailableError

PUT_DELAY, AGENTS, NODES = "put-delay-ms", "agents", "nodes"
BUCKET, S3 = "bucket", "s3"
PUT_MS, GET_MS, SIGMA, SEED = "put-ms", "get-ms", "sigma", "seed"
LATENCY = (PUT_MS, GET_MS, SIGMA, SEED)
OF_HEADRACE = frozenset({AGENTS, BUCKET, *LATENCY})
OF_DEV = OF_HEADRACE | {PUT_DELAY}
OF_KAFKA = frozenset({NODES})
DELAY_MS_MAX = 60_000
PROCESSES_MAX = 100


@dataclass(frozen=True, slots=True)
class S3Latency:
    """What each request waits: log-normal, with these medians and this standard deviation of the logarithm."""

    put_ms: float = 0
    get_ms: float = 0
    sigma: float = 0.5
    seed: int = 7


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Options of a target that the bench starts. `s3`: its bucket is an S3 server, this far away; None: a directory."""

    agents: int = 1
    nodes: int = 1
    put_delay_ms: int = 0
    s3: S3Latency | None = None


def read_options(given: Mapping[str, str], known: frozenset[str]) -> TargetOptions:
    """Read the keys in `known`; the others are settings. ConfigError for values out of range, or without effect."""
    own = {key: value for key, value in given.items() if key in known}
    if own.get(BUCKET, S3) != S3:
        raise ConfigError(f"the bucket of a target that the bench starts is a directory, or {BUCKET}={S3}")
    s3 = None
    if BUCKET in own:
        if PUT_DELAY in own:
            raise ConfigError(f"{PUT_DELAY} is for a directory; with {BUCKET}={S3} it is {PUT_MS}=N")
        s3 = S3Latency(
            put_ms=_number(own, PUT_MS, 0, DELAY_MS_MAX),
            get_ms=_number(own, GET_MS, 0, DELAY_MS_MAX),
            sigma=_number(own, SIGMA, S3Latency().sigma, 10),
            seed=_whole(own, SEED, S3Latency().seed, 0, 2**32),
        )
    elif useless := [key for key in LATENCY if key in own]:
        raise ConfigError(f"{', '.join(useless)}: only with {BUCKET}={S3}")
    return TargetOptions(
        agents=_whole(own, AGENTS, 1, 1, PROCESSES_MAX),
        nodes=_whole(own, NODES, 1, 1, PROCESSES_MAX),
        put_delay_ms=_whole(own, PUT_DELAY, 0, 0, DELAY_MS_MAX),
        s3=s3,
    )


def _whole(given: Mapping[str, str], key: str, default: int, least: int, most: int) -> int:
    text = given.get(key, str(default))
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ConfigError(f"{key} is not a whole number from {least} to {most}: {text}")
    return int(text)


def _number(given: Mapping[str, str], key: str, default: float, most: float) -> float:
    text = given.get(key, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= most:
        raise ConfigError(f"{key} is not a number from 0 to {most}: {text}")
    return value


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


TIMEOUT_SECONDS = 30
TRUST, KEY, TOKEN = "http.ssl.truststore.location", "http.ssl.keystore.location", "http.bearer.token.location"
NAMES = frozenset({TRUST, KEY, TOKEN})


class HttpAccess(msgspec.Struct, frozen=True):
    """`trust` or `key` (a client certificate): HTTPS."""

    trust: str = ""
    key: str = ""
    token: str = ""

    @staticmethod
    def of(given: Mapping[str, str]) -> HttpAccess:
        """Read the keys NAMES; the token is read from its file. ConfigError if that cannot be read."""
        path = given.get(TOKEN)
        try:
            token = Path(path).read_text().split()[0] if path else ""
        except (OSError, IndexError, UnicodeDecodeError) as error:
            raise ConfigError(f"{TOKEN}: no token in {path}") from error
        return HttpAccess(given.get(TRUST, ""), given.get(KEY, ""), token)

    def page(self, address: str, path: str) -> str:
        """The text of a page of the process at host:port. UnavailableError if it does not answer."""
        scheme = "https" if self.trust or self.key else "http"
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            request = Request(f"{scheme}://{address}{path}", headers=headers)
            with urlopen(request, timeout=TIMEOUT_SECONDS, context=self._context()) as page:
                return str(page.read().decode())
        except OSError as error:
            raise UnavailableError(f"no metrics from {address}: {error}") from error

    def _context(self) -> ssl.SSLContext | None:
        if not self.trust and not self.key:
            return None
        context = ssl.create_default_context(cafile=self.trust or None)
        if self.key:
            context.load_cert_chain(self.key)
        return context


OPEN = HttpAccess()
"""Open without TLS and token."""


@dataclass(frozen=True, slots=True)
class MeasuredTarget:
    """A running system. `roots`: the process trees of each kind of its processes; empty if not known."""

    name: str
    bootstrap: str
    version: str
    roots: dict[str, tuple[int, ...]] = field(default_factory=dict)
    rig_roots: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Servers that the target uses and that are no part of it, as an S3 server: shown apart."""
    metrics: tuple[str, ...] = ()
    """host:port of each process with /metrics."""
    access: HttpAccess = OPEN
    metastore_url: str | None = None
    replication_factor: int = 1
    """The one of the topics that the bench creates."""


@asynccontextmanager
async def open_target(spec: TargetSpec, folder: Path, jars: Path | None) -> AsyncIterator[MeasuredTarget]:
    """Start or reach what `spec` names; errors as the target's own."""
    if spec.kind in (DEV, HEADRACE):
        from headrace.cli.bench.headrace_target import open_headrace  # here: it needs Postgres' client

        async with open_headrace(spec, folder) as target:
            yield target
    elif spec.kind == KAFKA:
        from headrace.cli.bench.kafka_target import open_kafka

        async with open_kafka(spec, folder, jars) as target:
            yield target
    else:
        yield _running(spec)


def _running(spec: TargetSpec) -> MeasuredTarget:
    settings = dict(spec.settings)
    http, pid = settings.pop("http", ""), settings.pop("pid", "")
    access = HttpAccess.of(settings)
    if settings.keys() - NAMES or (pid and not pid.isdecimal()):
        known = ", ".join(sorted(NAMES))
        raise ConfigError(f"of a running target only http=HOST:PORT, pid=N, {known} can be given: {spec.where}")
    return MeasuredTarget(
        spec.name,
        spec.where,
        version="",
        roots={"server": (int(pid),)} if pid else {},
        metrics=(http,) if http else (),
        access=access,
    )
