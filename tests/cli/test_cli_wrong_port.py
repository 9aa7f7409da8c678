"""A tool that is pointed at a port that speaks TLS, HTTPS, or nothing at all, says so."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from headrace.cli.main import main
from tests.agent.access.certificates import Authority

Serve = Callable[[socket.socket], None]


@contextmanager
def _served(serve: Serve) -> Iterator[str]:
    """A port; `serve` gets each connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with suppress(OSError), connection:
                        serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def _tls(folder: Path, answer: bytes, *, asks_for_certificate: bool = False) -> Serve:
    authority = Authority(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("server"))
    if asks_for_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.path)

    def serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as encrypted:
            encrypted.recv(1000)
            encrypted.sendall(answer)

    return serve


def _refused(address: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["topics", "list", "-b", address]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("asks_for_certificate", [False, True])
def test_a_tls_port_is_named(asks_for_certificate: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _served(_tls(tmp_path, b"", asks_for_certificate=asks_for_certificate)) as address:
        wanted = "it is a TLS port: set security.protocol=SSL (or SASL_SSL) in the file of --config"
        assert _refused(address, capsys) == f"error: no server answered: {address} {wanted}\n"


def test_an_https_port_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _served(_tls(tmp_path, b"HTTP/1.1 200 OK\r\n\r\n")) as address:
        assert "it is an HTTPS port" in _refused(address, capsys)


def test_of_a_port_that_only_closes_nothing_is_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    with _served(lambda connection: None) as address:
        assert "port:" not in _refused(address, capsys)
