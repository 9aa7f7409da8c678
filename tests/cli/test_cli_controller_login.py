"""SASL on the listener for controllers, alone and next to a broker; and the warnings of a process on a network."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId
from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest
from kio.schema.unregister_broker.v0.response import UnregisterBrokerResponse

from headrace.config.free_ports import free_ports
from headrace.protocol.client.transport import ask, client_config
from headrace.storage.errors import HeadraceError
from tests.agent_process import SECONDS_MAX, format_storage, running_agent

pytestmark = [pytest.mark.requirement("X2")]


@pytest.fixture
def flags(metastore_url: str, tmp_path: Path) -> list[str]:
    """Return the flags of a cluster with the user `ops`."""
    (tmp_path / "password").write_text("open sesame")
    user = f"SCRAM-SHA-256=[name=ops,password-file={tmp_path / 'password'}]"
    places = {"metastore.url": metastore_url, "bucket": tmp_path.as_uri()}
    return [*format_storage(places, "--add-scram", user), "--http-port", "0", "--log-level", "warning"]


def _asked(address: str, directory: Path, mechanism: str = "", password: str = "open sesame") -> ErrorCode:
    """The answer of an API that controllers serve; HeadraceError or OSError if there is none."""
    path = None
    if mechanism:
        path = directory / "client.properties"
        lines = ["security.protocol=SASL_PLAINTEXT", f"sasl.mechanism={mechanism}", "sasl.username=ops"]
        path.write_text("\n".join([*lines, f"sasl.password={password}", "request.timeout.ms=60000"]))
    answer = ask(
        client_config(address, path), UnregisterBrokerRequest(broker_id=BrokerId(99)), UnregisterBrokerResponse
    )
    code: ErrorCode = answer.error_code
    return code


def _answer_of_the_active_controller(address: str, directory: Path) -> ErrorCode:
    """The same for the user `ops`, asked again while the process has not taken the controller's lease."""
    until = time.monotonic() + SECONDS_MAX
    while (code := _asked(address, directory, "SCRAM-SHA-256")) is ErrorCode.not_controller:
        assert time.monotonic() < until, "no controller became active"
        time.sleep(0.1)
    return code


@pytest.mark.parametrize("roles", ["controller", "broker,controller"])
def test_only_users_are_served_by_a_controllers_listener(roles: str, flags: list[str], tmp_path: Path) -> None:
    port, client = free_ports(2)
    address, listeners = f"127.0.0.1:{port}", f"CONTROLLER://127.0.0.1:{port}"
    own = {
        "process.roles": roles,
        "node.id": "7",
        "listeners": listeners if roles == "controller" else f"PLAINTEXT://127.0.0.1:{client},{listeners}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT",
        "connection.failed.authentication.delay.ms": "1",
    }
    config = tmp_path / "agent.properties"
    mechanisms = "listener.name.controller.sasl.enabled.mechanisms=SCRAM-SHA-256\n"
    config.write_text("".join(f"{name}={value}\n" for name, value in own.items()) + mechanisms)
    with running_agent([*flags, "--config", str(config)], tmp_path / "log"):
        assert _answer_of_the_active_controller(address, tmp_path) is ErrorCode.broker_id_not_registered
        for mechanism, password in (("", ""), ("SCRAM-SHA-256", "guess"), ("SCRAM-SHA-512", "open sesame")):
            with pytest.raises((HeadraceError, OSError)):
                _asked(address, tmp_path, mechanism, password)
    assert "open to a network" not in (tmp_path / "log").read_text()


def test_what_is_open_to_a_network_is_said_once(flags: list[str], tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = tmp_path / "agent.properties"
    config.write_text(
        f"listeners=SASL_PLAINTEXT://0.0.0.0:{port}\nadvertised.listeners=SASL_PLAINTEXT://127.0.0.1:{port}\n"
        "sasl.enabled.mechanisms=PLAIN\n"
    )
    with running_agent([*flags, "--config", str(config)], tmp_path / "log"):
        pass
    warnings = re.findall("open to a network: (.*)", (tmp_path / "log").read_text())
    assert len(warnings) == 3
    for line, part in zip(
        warnings, ("PLAIN sends passwords", "encrypts nothing", "ACLs are not enforced"), strict=True
    ):
        assert part in line
