"""The sockets of an address to listen on, with the file descriptors that the process has for connections.

Place: under the Kafka listener and the HTTP port. The limit of descriptors is raised at the start of a process; the
broker asks for each new connection how many are left.
Definitions: `::` means every address of the machine, IPv4 too, as for Kafka; 0.0.0.0 means every IPv4 address. A
name means all its addresses, so `localhost` can be 127.0.0.1 and ::1.
Invariant: all sockets of an address have the same port, and their connections send without delay (TCP_NODELAY).
Connections of clients leave RESERVED descriptors, and those that the settings name, to the metastore's pools, the
bucket, the HTTP listener and files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
from collections.abc import Sequence

from headrace.config.addresses import address_text
from headrace.config.settings import Settings

RESERVED = 256
BACKLOG = 1024
"""Connections that the kernel keeps until they are accepted."""
ACCEPTED_AT_ONCE = 64
"""Number of connections accepted in one turn of the event loop: each begins its handshake there, which costs about
0.3 ms with TLS.
"""
_ENOUGH = 1 << 20


def raise_descriptor_limit() -> int:
    """Let this process open as many as it may; returns the number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft if soft != resource.RLIM_INFINITY else _ENOUGH


def connections_possible(settings: Settings) -> int:
    """Clients' connections that leave enough descriptors for everything else, also for those that a balancer has not
    named yet; at least 1."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _ENOUGH
    metastore = settings.metastore_pool_size + settings.metastore_reader_connections
    own = metastore + settings.s3_max_connections + 2 * settings.http_max_connections
    return max(1, soft - RESERVED - ACCEPTED_AT_ONCE - own - settings.max_unauthenticated_connections)


EVERY_ADDRESS, EVERY_IPV4_ADDRESS = "::", "0.0.0.0"
_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""An address of a name that this machine does not have, for example ::1 where IPv6 is switched off."""
_ATTEMPTS = 10


def bound_sockets(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Return listening sockets, at least one; port 0 picks a free one. OSError if the address cannot be bound."""
    if host == EVERY_ADDRESS:
        try:
            return [_bound(socket.AF_INET6, (host, port), backlog, is_dual=True)]
        except OSError as error:
            if error.errno != errno.EAFNOSUPPORT:
                raise
            host = EVERY_IPV4_ADDRESS  # the kernel has no IPv6
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    places = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    attempts = _ATTEMPTS if port == 0 else 1
    for attempt in range(1, attempts + 1):
        try:
            return _all_bound(places, port, backlog)
        except OSError as error:  # the first address got a port that another program has at the next address
            if error.errno != errno.EADDRINUSE or attempt == attempts:
                raise
    raise AssertionError(attempts)


def why_unbound(host: str, port: int, error: OSError) -> str:
    """Return the message for a person. The errno of a failed look-up is not one of the system's."""
    is_lookup = isinstance(error, socket.gaierror)
    reason = error.strerror if is_lookup else os.strerror(error.errno or 0)
    return f"cannot listen on {address_text(host, port)}: {reason}"


def _all_bound(places: Sequence[tuple[int, tuple[object, ...]]], port: int, backlog: int) -> list[socket.socket]:
    """Return sockets at all addresses that this machine has, with one port."""
    with contextlib.ExitStack() as opened:
        sockets: list[socket.socket] = []
        for place, (family, address) in enumerate(places):
            at = (address[0], sockets[0].getsockname()[1] if sockets else port, *address[2:])
            try:
                sockets.append(opened.enter_context(_bound(family, at, backlog)))
            except OSError as error:
                if error.errno not in _NOT_HERE or (place == len(places) - 1 and not sockets):
                    raise
        opened.pop_all()
        return sockets


def _bound(family: int, address: tuple[object, ...], backlog: int, *, is_dual: bool = False) -> socket.socket:
    # asyncio sets TCP_NODELAY for connections of a socket that names the protocol: answers would wait for the client's
    # acknowledgement otherwise
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_dual)
        made.bind(address)
        made.listen(backlog)
    except BaseException:
        made.close()
        raise
    return made
