"""The client's TLS with certificates that are texts, as links have them."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path

import pytest

from headrace.config.errors import ConfigError
from headrace.protocol.client.login import Login
from tests.agent.access.certificates import Authority


def test_a_client_shows_a_certificate_that_is_a_text(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, client = authority.issue("server"), authority.issue("client")
    trusted = authority.path.read_text()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.path))
    context.load_cert_chain(server)
    context.verify_mode = ssl.CERT_REQUIRED
    shown: list[object] = []
    key, _, chain = client.read_text().partition("-----BEGIN CERTIFICATE-----")
    login = Login.of(
        {
            "security.protocol": "SSL",
            "ssl.truststore.certificates": trusted.replace("\n", " "),
            "ssl.keystore.key": key.replace("\n", " "),
            "ssl.keystore.certificate.chain": f"-----BEGIN CERTIFICATE-----{chain}",
            "ssl.endpoint.identification.algorithm": "",
        }
    )
    near, far = socket.socketpair()

    def serve() -> None:
        with context.wrap_socket(far, server_side=True) as connection:
            shown.append(connection.getpeercert())
            connection.sendall(b"!")

    thread = threading.Thread(target=serve)
    thread.start()
    with login.encrypt(near, "server") as connection:
        assert connection.recv(1) == b"!"
    thread.join()
    assert shown
    assert shown[0]


def test_a_text_that_is_no_certificate_is_a_wrong_config() -> None:
    login = Login.of({"security.protocol": "SSL", "ssl.truststore.certificates": "-----BEGIN NOTHING"})
    near, far = socket.socketpair()
    with near, far, pytest.raises(ConfigError, match="not PEM"):
        login.encrypt(near, "server")
