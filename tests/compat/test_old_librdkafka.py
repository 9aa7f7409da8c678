"""librdkafka before 2.6.1 by SCRAM, which Debian 12 has: refused by Apache Kafka 4 and by Headrace; PLAIN works.

It puts its nonce before the server's nonce a second time (docs/start/COMPATIBILITY.md, client bugs).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, UserScramCredentialUpsertion

from headrace.config.free_ports import free_ports
from tests.agent_process import SECONDS_MAX, AgentUnderTest, format_storage
from tests.compat.kafka_server import kafka_server
from tests.faults.secure_cluster import MECHANISMS, PASSWORD
from tests.house.needs import require

FIXED = (2, 6, 1)
SCRAM = tuple(mechanism.name.replace("_", "-") for mechanism in MECHANISMS)
_MODULE = "org.apache.kafka.common.security"


def _lines(clients: int, admins: int) -> dict[str, str]:
    """Return the listeners that both servers get."""
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{admins},CLIENT://127.0.0.1:{clients}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(["PLAIN", *SCRAM]),
        "inter.broker.listener.name": "PLAINTEXT",
    }


def _kafka(stack: ExitStack, folder: Path, clients: int, admins: int) -> None:
    require("kafka")
    (controllers,) = free_ports(1)
    own = _lines(clients, admins)
    settings = own | {
        "listeners": f"{own['listeners']},CONTROLLER://127.0.0.1:{controllers}",
        "advertised.listeners": own["listeners"],
        "controller.quorum.voters": f"1@127.0.0.1:{controllers}",
        "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{own['listener.security.protocol.map']}",
        "listener.name.client.plain.sasl.jaas.config": (
            f'{_MODULE}.plain.PlainLoginModule required user_orders="{PASSWORD}";'
        ),
    }
    for name in SCRAM:
        jaas = f"{_MODULE}.scram.ScramLoginModule required;"
        settings[f"listener.name.client.{name.lower()}.sasl.jaas.config"] = jaas
    stack.enter_context(kafka_server(folder, settings))


def _headrace(stack: ExitStack, folder: Path, url: str, clients: int, admins: int) -> None:
    (folder / "bucket").mkdir()
    settings: dict[str, object] = {"metastore.url": url, "bucket": (folder / "bucket").as_uri(), "log.level": "error"}
    format_storage(settings)
    stack.enter_context(AgentUnderTest(settings | _lines(clients, admins)))


@pytest.fixture(params=["headrace", pytest.param("kafka", marks=pytest.mark.slow)])
def bootstrap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Address of a listener with SASL. The user "orders" has a password for each mechanism."""
    clients, admins = free_ports(2)
    with ExitStack() as stack:
        if request.param == "kafka":
            _kafka(stack, tmp_path, clients, admins)
        else:
            _headrace(stack, tmp_path, request.getfixturevalue("metastore_url"), clients, admins)
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{admins}"})
        for mechanism in MECHANISMS:  # Kafka refuses both in one request
            change = UserScramCredentialUpsertion("orders", ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            admin.alter_user_scram_credentials([change])["orders"].result(SECONDS_MAX)
        for name in SCRAM:  # a librdkafka of today: waits until the server knows the user
            client = AdminClient(
                {
                    "bootstrap.servers": f"127.0.0.1:{clients}",
                    "security.protocol": "SASL_PLAINTEXT",
                    "sasl.mechanism": name,
                    "sasl.username": "orders",
                    "sasl.password": PASSWORD,
                    "log_level": 0,
                }
            )
            assert client.list_topics(timeout=SECONDS_MAX).brokers
        yield f"127.0.0.1:{clients}"


def _is_refused(bootstrap: str, mechanism: str) -> bool:
    """Return whether kcat's first login fails. It tries again until its time is over, so it is ended then."""
    settings = ("security.protocol=SASL_PLAINTEXT", f"sasl.mechanism={mechanism}", "sasl.username=orders")
    options = [word for line in (*settings, f"sasl.password={PASSWORD}") for word in ("-X", line)]
    with subprocess.Popen(
        ["kcat", "-L", "-m", str(SECONDS_MAX), "-b", bootstrap, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as kcat:
        assert kcat.stderr is not None
        for line in kcat.stderr:
            if "SASL authentication error" in line:
                kcat.kill()
                return True
    assert kcat.returncode == 0
    return False


@pytest.mark.needs("kcat")
def test_scram_of_debians_librdkafka(bootstrap: str) -> None:
    version = re.search(r"librdkafka (\d+)\.(\d+)\.(\d+)", subprocess.check_output(["kcat", "-V"], text=True))
    assert version is not None
    is_old = tuple(int(part) for part in version.groups()) < FIXED
    assert {name: _is_refused(bootstrap, name) for name in SCRAM} == dict.fromkeys(SCRAM, is_old)
    assert not _is_refused(bootstrap, "PLAIN")
