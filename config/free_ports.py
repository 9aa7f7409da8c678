"""Ports for servers that do not say which one they got: Postgres, Kafka, S3 servers.

Place: under the embedded Postgres, the bench's servers, load programs and tests.
Invariant: a port is outside the range from which the system gives ports to connections and to servers that ask for
any (net.ipv4.ip_local_port_range, from 32768 on Linux), so no other program gets it by chance before its server starts.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket

FIRST, END = 10_000, 32_768
_ATTEMPTS = 1_000


def free_ports(count: int) -> list[int]:
    """Return different ports that no program listens on now. OSError (EADDRINUSE) where none is found."""
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        for _ in range(_ATTEMPTS):
            if len(ports) == count:
                return ports
            port = FIRST + secrets.randbelow(END - FIRST)
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("", port))
                ports.append(port)
    raise OSError(errno.EADDRINUSE, f"no free port was found from {FIRST} to {END - 1} in {_ATTEMPTS} attempts")
