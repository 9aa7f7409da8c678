"""Write and read addresses of IPv4 and IPv6 in one way.

Place: used by all code that prints an address with a port.
Invariant: an IPv6 address is in brackets when a port follows it. An IPv4 client of a socket that takes both families
has its IPv4 address, so that limits, quotas and ACLs know it by one address.
"""

from __future__ import annotations

import ipaddress

_MAPPED = "::ffff:"
_NETWORK_BITS = 64


def address_text(host: str, port: int | str) -> str:
    """Return `host:port`, or `[host]:port` for an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def unmapped(host: str) -> str:
    """Return the IPv4 address of `::ffff:10.0.0.1`; any other host as it is."""
    return host.removeprefix(_MAPPED) if host.startswith(_MAPPED) and "." in host else host


def is_every_address(host: str) -> bool:
    """Return whether a socket that is bound to the address takes connections to any address of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def counted_address(host: str) -> str:
    """Return what limits per address count by: an IPv4 address, or the /64 network of an IPv6 address.

    One host usually has a whole /64 and may connect from any address in it.
    """
    if ":" not in host:
        return host
    try:
        return str(ipaddress.ip_network((host.partition("%")[0], _NETWORK_BITS), strict=False))
    except ValueError:
        return host
