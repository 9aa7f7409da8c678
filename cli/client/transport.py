"""One Kafka request and its response over a socket; and the choice of servers.

Place: under cli/client/cluster.py, and under tools that send one request to any server.
Invariant: bootstrap servers are tried in order until one answers; the caller evaluates the response.
"""

from __future__ import annotations

import io
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from headrace.cli.client.login import PLAINTEXT, SETTINGS, Login
from headrace.config.addresses import address_text
from headrace.config.errors import ConfigError
from headrace.config.load import BOOTSTRAP_SERVER, read_properties
from headrace.config.references import resolved
from headrace.storage.errors import CorruptError, InvalidError, UnavailableError

DEFAULT_PORT = 9092
TIMEOUT_MS_MAX = 2**31 - 1
"""Kafka's upper bound of request.timeout.ms, an int."""
RESPONSE_BYTES_MAX = 64 * 1024 * 1024
API_VERSIONS_KEY = 18
"""The API with the old response header in every version."""
_SETTINGS = ("bootstrap.servers", "client.id", "request.timeout.ms", *SETTINGS)


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The settings of Kafka's admin client that are supported here."""

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str = "headrace"
    request_timeout_ms: int = 30_000
    login: Login = PLAINTEXT


def client_config(bootstrap: str | None, path: Path | None) -> ClientConfig:
    """Read the client's configuration from -b, the variable and the properties file.

    ConfigError if something is missing or unsupported.
    """
    written = read_properties(path) if path is not None else {}
    given = {name: str(resolved(value, os.environ)) for name, value in written.items()}
    for name in given:
        if name not in _SETTINGS:
            raise ConfigError(f"{path}: unknown setting {name} (known: {', '.join(_SETTINGS)})")
    servers = bootstrap or os.environ.get(BOOTSTRAP_SERVER) or given.get("bootstrap.servers")
    if not servers:
        raise ConfigError(f"set --bootstrap-server, {BOOTSTRAP_SERVER}, or bootstrap.servers in the file of --config")
    timeout = given.get("request.timeout.ms", "30000")
    if not timeout.isdecimal() or not 0 < int(timeout) <= TIMEOUT_MS_MAX:
        raise ConfigError(f"{path}: request.timeout.ms is not a number of milliseconds: {timeout}")
    return ClientConfig(parse_servers(servers), given.get("client.id", "headrace"), int(timeout), Login.of(given))


def parse_servers(text: str) -> tuple[tuple[str, int], ...]:
    """`host:port,host:port`, each with an optional `id@` prefix as in controller.quorum.voters. ConfigError."""
    servers = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition("@")[2].rpartition(":")
        if not colon:
            host, port = port, str(DEFAULT_PORT)
        if not _is_host(host) or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise ConfigError(f"not a host and port: {part.strip()!r}")
        servers.append((host.strip("[]"), int(port)))
    return tuple(servers)


def ask(config: ClientConfig, request: Any, response_type: type[Any]) -> Any:
    """The response of the first server that answers; UnavailableError, with all failures, if none does."""
    failures = []
    for host, port in config.bootstrap_servers:
        try:
            with connect(config, (host, port)) as connection:
                return exchange(connection, config.client_id, request, response_type)
        except OSError as error:
            failures.append(f"{address_text(host, port)} {error}")
    raise UnavailableError(f"no server answered: {'; '.join(failures)}")


def connect(config: ClientConfig, address: tuple[str, int]) -> socket.socket:
    """A connection that requests can be sent on. OSError if it cannot be made; InvalidError if the server refuses the
    client, ConfigError for files that cannot be used."""
    connection = socket.create_connection(address, config.request_timeout_ms / 1000)
    try:
        connection = config.login.encrypt(connection, address[0])
        if config.login.uses_sasl:
            _authenticate(connection, config)
    except BaseException:
        connection.close()
        raise
    return connection


def _authenticate(connection: socket.socket, config: ClientConfig) -> None:
    request = SaslHandshakeRequest(mechanism=config.login.mechanism)
    answer = exchange(connection, config.client_id, request, SaslHandshakeResponse)
    if answer.error_code is not ErrorCode.none:
        offered = ", ".join(answer.mechanisms)
        raise InvalidError(f"sasl.mechanism: refused: {answer.error_code.name}; the server has: {offered or 'none'}")

    def send(message: bytes) -> bytes:
        request = SaslAuthenticateRequest(auth_bytes=message)
        answer = exchange(connection, config.client_id, request, SaslAuthenticateResponse)
        if answer.error_code is not ErrorCode.none:
            raise InvalidError(answer.error_message or answer.error_code.name)
        return bytes(answer.auth_bytes)

    config.login.authenticate(send)


def exchange(connection: socket.socket, client_id: str, request: Any, response_type: type[Any]) -> Any:
    """The response to one request.

    OSError if the connection fails, CorruptError for bytes that are no response, InvalidError for values that the
    protocol cannot carry.
    """
    header_size = 5 if request.__flexible__ and request.__api_key__ != API_VERSIONS_KEY else 4
    answer = exchange_frame(connection, _frame(client_id, request), header_size)
    try:
        entity, _ = entity_reader(response_type)(memoryview(answer), header_size)
    except (SerialError, ValueError, IndexError, struct.error) as error:
        raise CorruptError(f"cannot parse response: {error}") from error
    return entity


def exchange_frame(connection: socket.socket, frame: bytes, bytes_min: int = 4) -> bytes:
    """The response's bytes after their length, for a request that is encoded already. Errors as `exchange`."""
    connection.sendall(frame)
    (size,) = struct.unpack(">i", _read(connection, 4))
    if not bytes_min <= size <= RESPONSE_BYTES_MAX:
        raise CorruptError(f"not a Kafka response: size={size}")
    return _read(connection, size)


def _is_host(text: str) -> bool:
    try:
        return bool(text.encode("idna"))
    except UnicodeError:  # an empty label, or one that is too long
        return False


def _frame(client_id: str, request: Any) -> bytes:
    body = io.BytesIO()
    try:
        name = client_id.encode()
        entity_writer(type(request))(body, request)
        header = struct.pack(">hhih", request.__api_key__, request.__version__, 1, len(name)) + name
    except (SerialError, ValueError, struct.error) as error:  # text that is not UTF-8, or too long for its field
        raise InvalidError(f"cannot encode request: {error}") from error
    frame = header + (b"\0" if request.__flexible__ else b"") + body.getvalue()
    return struct.pack(">i", len(frame)) + frame


def _read(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionResetError("connection closed before the response")
        received += part
    return bytes(received)
