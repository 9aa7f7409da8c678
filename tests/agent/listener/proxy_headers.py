"""Headers of PROXY protocol, version 2, as a load balancer sends them (HAProxy's proxy-protocol.txt, section 2.2)."""

from __future__ import annotations

import ipaddress
import struct

from headrace.agent.listener.proxy_header import SIGNATURE

_PROXY = 0x21
_FIXED = struct.Struct(">12sBBH")


def proxy_header(client: tuple[str, int], server: tuple[str, int]) -> bytes:
    """Return the header that a balancer sends for this client."""
    source, destination = ipaddress.ip_address(client[0]), ipaddress.ip_address(server[0])
    family = 0x11 if source.version == 4 else 0x21
    ports = struct.pack(">HH", client[1], server[1])
    addresses = source.packed + destination.packed + ports
    return _FIXED.pack(SIGNATURE, _PROXY, family, len(addresses)) + addresses
