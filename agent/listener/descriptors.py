"""The process's file descriptors: as many as the system allows, some of them kept from clients.

Place: raised at the start of a process; asked by the broker for each new connection's limit.
Invariant: connections of clients leave RESERVED descriptors, and those that the settings name, to the metastore's
pools, the bucket, the HTTP listener and files.
"""

from __future__ import annotations

import resource

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
