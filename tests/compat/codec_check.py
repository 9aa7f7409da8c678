"""Runs CodecCheck.java: random requests of every API and version to an agent, each answer read by Kafka's own classes.

Place: for test_codec.py, and `make compat SUITE=codec`.
Invariant: the agent has listeners for clients, with and without a login, and for controllers, so that every API is
advertised on one and can be served; leaving the context ends all processes that it started.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from headrace.config.free_ports import free_ports
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.installation import remove_data_dir
from headrace.metastore.postgres.migrate import migrate
from tests.agent_process import AgentUnderTest, format_storage
from tests.compat.suites.catalog import User
from tests.compat.suites.secure_agents import make_user
from tests.java_program import run_java
from tests.tools import KAFKA_JARS

SOURCE, REQUESTS = (Path(__file__).with_name(f"{name}.java") for name in ("CodecCheck", "RandomRequests"))
SETTINGS: dict[str, object] = {"linger.ms": 1, "group.initial.rebalance.delay.ms": 0, "log.level": "error"}
"""So that no request waits longer than it has to."""
LOGIN_KEYS = (17, 36, 38, 39, 40, 41)
"""SASL and delegation tokens: only errors without a login."""
USER = User("SCRAM-SHA-256", "codec", "codec-secret")
_KEY = re.compile(r"(\d+) (\w+): \d+ versions \([-\d]+(?:, )?(.*)\), (\d+) requests, (\d+) findings")


class KeyResult(NamedTuple):
    """`other`: versions that only Kafka or only the agent has. `line`: as the program printed it."""

    key: int
    name: str
    other: str
    requests: int
    findings: int
    line: str


class CodecReport(NamedTuple):
    """`findings`: the program's lines about them, empty if each answer is right."""

    keys: list[KeyResult]
    findings: list[str]
    output: str


@contextmanager
def own_agent(folder: Path) -> Iterator[list[str]]:
    """`codec_agent` on a Postgres that ends with it."""
    with ExitStack() as stack:
        stack.callback(remove_data_dir, folder / "postgres")
        url = stack.enter_context(EmbeddedPostgres(folder / "postgres", fsync=False))
        migrate(url)
        yield stack.enter_context(codec_agent(url, folder))


@contextmanager
def codec_agent(metastore_url: str, folder: Path) -> Iterator[list[str]]:
    """The addresses of one agent: with a login for LOGIN_KEYS, for clients, and for controllers."""
    (folder / "bucket").mkdir()
    logins, clients, controllers = (f"127.0.0.1:{port}" for port in free_ports(3))
    settings = {
        "process.roles": "broker,controller",
        "metastore.url": metastore_url,
        "bucket": (folder / "bucket").as_uri(),
        "listeners": f"PLAINTEXT://{clients},SASL_PLAINTEXT://{logins},CONTROLLER://{controllers}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "sasl.enabled.mechanisms": "PLAIN",
        "delegation.token.secret.key": "codec",
        "node.id": 1,
        **SETTINGS,
    }
    format_storage(settings)
    with AgentUnderTest(settings):
        make_user(clients, USER)
        yield [f"{USER.name}:{USER.password}@{logins}", clients, controllers]


def check(addresses: Sequence[str], seed: int, requests: int, keys: Sequence[int] = ()) -> CodecReport:
    """`requests` of each version of each API, or of `keys` only. RuntimeError if the program fails."""
    arguments = [str(seed), str(requests)]
    for address in addresses:
        chosen = [key for key in LOGIN_KEYS if not keys or key in keys] if "@" in address else keys
        if chosen or "@" not in address:
            arguments += [",".join(map(str, chosen)) or "all", address]
    done = run_java(SOURCE, f"{KAFKA_JARS}/*", *arguments, parts=[REQUESTS])
    found = re.findall(r"^finding .*$", done.stdout, re.MULTILINE)
    if done.returncode:
        raise RuntimeError(f"CodecCheck failed: {done.stdout[-2000:]}{done.stderr}")
    lines = [(line, match) for line in done.stdout.splitlines() if (match := _KEY.match(line))]
    keys_found = [KeyResult(int(m[1]), m[2], m[3], int(m[4]), int(m[5]), line) for line, m in lines]
    return CodecReport(keys_found, found, done.stdout)
