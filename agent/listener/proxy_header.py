"""The header of PROXY protocol, version 2, with which a load balancer says who the client is. Pure.

Place: under server.py, before the first frame of a connection.
Invariant: bytes that cannot become a header are refused at the first of them; a header has at most HEADER_BYTES_MAX
bytes. The extensions (TLVs) after the addresses are skipped.
Source: HAProxy's proxy-protocol.txt, section 2.2.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import NamedTuple

from headrace.storage.errors import InvalidError

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
HEADER_BYTES_MAX = 4096
_FIXED = struct.Struct(">12sBBH")
_LOCAL, _PROXY = 0x20, 0x21
_ADDRESSES = {0x11: struct.Struct(">4s4sHH"), 0x21: struct.Struct(">16s16sHH")}
"""Family and transport (TCP over IPv4, over IPv6) -> source, destination and their ports."""
_UNSPECIFIED = 0x00


class ProxyHeader(NamedTuple):
    """`client` None: the balancer itself connected, or does not say for whom."""

    client: tuple[str, int] | None
    size: int


def read_proxy_header(data: bytes) -> ProxyHeader | None:
    """The header at the start of `data`; None while bytes are missing. InvalidError for anything else."""
    if data[: len(SIGNATURE)] != SIGNATURE[: len(data)]:
        reason = "version 1 is not supported" if data.startswith(b"PROXY") else "the first bytes are another protocol's"
        raise InvalidError(f"no header of PROXY protocol version 2: {reason}")
    if len(data) < _FIXED.size:
        return None
    _, command, family, length = _FIXED.unpack_from(data)
    if command not in (_LOCAL, _PROXY):
        raise InvalidError(f"PROXY protocol: unknown version or command: {command:#x}")
    size = _FIXED.size + length
    if size > HEADER_BYTES_MAX:
        raise InvalidError(f"PROXY protocol: header too long: bytes={size} max={HEADER_BYTES_MAX}")
    addresses = _ADDRESSES.get(family)
    if command == _PROXY and family != _UNSPECIFIED and (addresses is None or length < addresses.size):
        raise InvalidError(f"PROXY protocol: neither TCP over IPv4 nor over IPv6: family={family:#x} bytes={length}")
    if len(data) < size:
        return None
    if command == _LOCAL or addresses is None:
        return ProxyHeader(None, size)
    source, _, port, _ = addresses.unpack_from(data, _FIXED.size)
    return ProxyHeader((str(ipaddress.ip_address(source)), port), size)


def missing_bytes(data: bytes) -> int:
    """Return how many bytes belong to the header for certain, beyond those that read_proxy_header needs more of."""
    if len(data) < _FIXED.size:
        return _FIXED.size - len(data)
    length: int = _FIXED.unpack_from(data)[3]
    return _FIXED.size + length - len(data)
