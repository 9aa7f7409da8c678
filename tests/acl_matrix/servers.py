"""Headrace and Apache Kafka with ACLs that are enforced, SASL_PLAINTEXT, and one super user.

Place: used by __main__.py. Leaving a context ends the processes that it started, by their ids.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.cli.bench.kafka_target import cluster_properties, find_jars, find_java
from headrace.cli.main import main as main_of_headrace
from headrace.config.free_ports import free_ports
from headrace.config.settings import STANDARD_AUTHORIZER
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.protocol.client.login import Login
from headrace.protocol.client.transport import ClientConfig, connect
from headrace.storage.cluster_properties import random_cluster_id
from headrace.storage.errors import InvalidError
from load.agent_child import AgentChild, flags

SUPER, PASSWORD, MECHANISM = "super", "a password", "SCRAM-SHA-256"
START_SECONDS = 120.0
STOP_SECONDS = 60.0
Address = tuple[str, int]
AUTHORIZATION = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": f"User:{SUPER}",
    "delegation.token.secret.key": "a secret",
}
"""Settings that both have."""


@contextmanager
def headrace_with_acls(folder: Path) -> Iterator[Address]:
    """One agent."""
    (folder / "bucket").mkdir()
    password = folder / "password"
    password.write_text(PASSWORD)
    scram = f"{MECHANISM}=[name={SUPER},password-file={password}]"
    with EmbeddedPostgres(folder / "postgres") as url:
        settings = {"metastore.url": url, "bucket": (folder / "bucket").as_uri()}
        format_flags = ["-t", random_cluster_id(random.SystemRandom()), "--add-scram", scram, *flags(settings)]
        if main_of_headrace(["storage", "format", *format_flags]):
            raise RuntimeError("the storage could not be formatted")
        own = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", **AUTHORIZATION, "group.initial.rebalance.delay.ms": 0}
        with AgentChild(settings | own, folder / "agent.log") as agent:
            yield _address(agent.kafka)


@contextmanager
def kafka_with_acls(folder: Path, jars: Path) -> Iterator[Address]:
    """One node, which connects to itself as the super user."""
    port, controller = free_ports(2)
    config = folder / "kafka.properties"
    listeners = f"SASL_PLAINTEXT://127.0.0.1:{port}"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    lines = cluster_properties(folder, [port], [controller])[0] | {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": f"{module} required"
        f' username="{SUPER}" password="{PASSWORD}";',
        **AUTHORIZATION,
        "super.users": f"User:{SUPER};User:ANONYMOUS",  # the controller's listener is PLAINTEXT
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
    java = [find_java(), "-Xmx512M", "-cp", f"{find_jars(jars)}/*"]
    cluster_id = random_cluster_id(random.SystemRandom())
    first_user = f"{MECHANISM}=[name={SUPER},password={PASSWORD}]"
    log = folder / "kafka.log"
    with log.open("ab") as output:
        format_flags = ["-t", cluster_id, "-c", str(config), "--add-scram", first_user]
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", *format_flags], stdout=output, stderr=output, check=True
        )
        process = subprocess.Popen(
            [*java, "kafka.Kafka", str(config)], stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
    try:
        _wait_until_started(process, ("127.0.0.1", port), log)
        yield "127.0.0.1", port
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_started(process: subprocess.Popen[bytes], address: Address, log: Path) -> None:
    """Wait until the first user can log in."""
    login = ClientConfig((address,), login=Login("SASL_PLAINTEXT", MECHANISM, SUPER, PASSWORD))
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            connect(login, address).close()
        except (OSError, InvalidError):
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"Apache Kafka did not start: {log.read_text(errors='replace')[-2000:]}")


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host, int(port)
