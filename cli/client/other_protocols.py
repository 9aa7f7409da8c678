"""What a port speaks that gave no Kafka response: TLS, HTTP, or HTTP over TLS.

Place: asked by cluster.py after a failure, for its message; two further connections.
Invariant: only a sure answer is returned, else None.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress

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
