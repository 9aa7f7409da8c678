"""One Kafka request with its response over a socket, to the first server that answers.

Place: under cluster.py, under tools that send one request to any server, and under links (compactor/links/). After a
failure two further connections find out what the port speaks, for the message: TLS, HTTP, or HTTP over TLS.
Invariant of other protocols: only a sure answer is returned, else None.
Invariant: bootstrap servers are tried in order until one answers; the caller evaluates the response.
"""

from __future__ import annotations

import io
import os
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
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

from headrace.config.addresses import address_text
from headrace.config.errors import ConfigError
from headrace.config.load import BOOTSTRAP_SERVER, read_properties, resolved
from headrace.protocol.client.login import PLAINTEXT, SETTINGS, Login
from headrace.storage.errors import CorruptError, InvalidError, UnavailableError

SECONDS_MAX = 3.0
"""The limit of each wait of the two connections; less if the client waits less for an answer."""
_REQUEST = b"GET /livez HTTP/1.0\r\n\r\n"


def named_protocol(address: tuple[str, int], answer_seconds: float = SECONDS_MAX) -> str | None:
    """Return what the tool's message says about the port. `answer_seconds`: how long the client waits for an answer."""
    seconds = min(SECONDS_MAX, answer_seconds)
    is_http = _speaks_http(address, None, seconds)
    if not is_http and _completes_handshake(address, seconds):
        if _speaks_http(address, _unchecked(), seconds):
            return "it is an HTTPS port: use the port of a Kafka listener"
        return "it is a TLS port: set security.protocol=SSL (or SASL_SSL) in the file of --config"
    return "it is an HTTP port: use the port of a Kafka listener" if is_http else None


def _unchecked() -> ssl.SSLContext:
    """Nothing is sent that would need a check of the certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _completes_handshake(address: tuple[str, int], seconds: float) -> bool:
    with suppress(OSError), socket.create_connection(address, seconds) as plain:
        try:
            _unchecked().wrap_socket(plain, server_hostname=address[0]).close()
        except ssl.SSLError as error:  # an alert is TLS, too: it may ask for a certificate of the client
            return "ALERT" in (error.reason or "")
        return True
    return False


def _speaks_http(address: tuple[str, int], context: ssl.SSLContext | None, seconds: float) -> bool:
    with suppress(OSError), socket.create_connection(address, seconds) as plain:
        connection = context.wrap_socket(plain, server_hostname=address[0]) if context else plain
        connection.sendall(_REQUEST)
        return connection.recv(5) == b"HTTP/"
    return False


DEFAULT_PORT = 9092
TIMEOUT_MS_MAX = 2**31 - 1
"""Kafka's upper bound of request.timeout.ms, an int."""
RESPONSE_BYTES_MAX = 64 * 1024 * 1024
WOKEN_BYTES = 512 * 1024
"""A large response is read in pieces of this size: a thread that wakes for each packet costs more than the packet."""
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
    answer_bytes_max: int = RESPONSE_BYTES_MAX


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


def connect(
    config: ClientConfig, address: tuple[str, int], opened: Callable[[socket.socket], object] | None = None
) -> socket.socket:
    """A connection that requests can be sent on. OSError if it cannot be made; InvalidError if the server refuses the
    client, ConfigError for files that cannot be used. `opened` gets the connection before its handshakes.
    """
    connection = socket.create_connection(address, config.request_timeout_ms / 1000)
    try:
        if opened is not None:
            opened(connection)
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


def exchange(
    connection: socket.socket,
    client_id: str,
    request: Any,
    response_type: type[Any],
    bytes_max: int = RESPONSE_BYTES_MAX,
) -> Any:
    """The response to one request.

    OSError if the connection fails, CorruptError for bytes that are no response, InvalidError for values that the
    protocol cannot carry.
    """
    header_size = 5 if request.__flexible__ and request.__api_key__ != API_VERSIONS_KEY else 4
    answer = exchange_frame(connection, request_frame(client_id, request), header_size, bytes_max)
    try:
        entity, _ = entity_reader(response_type)(memoryview(answer).toreadonly(), header_size)
    except (SerialError, ValueError, IndexError, struct.error) as error:
        raise CorruptError(f"cannot parse response: {error}") from error
    return entity


def exchange_frame(
    connection: socket.socket, frame: bytes, bytes_min: int = 4, bytes_max: int = RESPONSE_BYTES_MAX
) -> bytearray:
    """The response's bytes after their length, for a request that is encoded already. Errors as `exchange`."""
    connection.sendall(frame)
    (size,) = struct.unpack(">i", _read(connection, 4))
    if not bytes_min <= size <= bytes_max:
        raise CorruptError(f"not a Kafka response: size={size} max={bytes_max}")
    return _read(connection, size)


def _is_host(text: str) -> bool:
    try:
        return bool(text.encode("idna"))
    except UnicodeError:  # an empty label, or one that is too long
        return False


def request_frame(client_id: str, request: Any) -> bytes:
    """A request with its length and header. InvalidError for values that the protocol cannot carry."""
    body = io.BytesIO()
    try:
        name = client_id.encode()
        entity_writer(type(request))(body, request)
        header = struct.pack(">hhih", request.__api_key__, request.__version__, 1, len(name)) + name
    except (SerialError, ValueError, struct.error) as error:  # text that is not UTF-8, or too long for its field
        raise InvalidError(f"cannot encode request: {error}") from error
    frame = header + (b"\0" if request.__flexible__ else b"") + body.getvalue()
    return struct.pack(">i", len(frame)) + frame


def _read(connection: socket.socket, size: int) -> bytearray:
    received = bytearray(size)
    rest = memoryview(received)
    wakes_late = size > WOKEN_BYTES and type(connection) is socket.socket  # TLS reads ahead by itself
    try:
        while rest:
            if wakes_late:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(len(rest), WOKEN_BYTES))
            count = connection.recv_into(rest)  # a `recv` of what is left would make room for all of it each time
            if not count:
                raise ConnectionResetError("connection closed before the response")
            rest = rest[count:]
    finally:
        if wakes_late:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    return received
