"""The cluster's DNS: names of Services, over UDP.

Place: pods find it at its cluster address in /etc/resolv.conf; services.py starts it.
Answers `NAME.NAMESPACE.svc.cluster.local` with the cluster address, or for a headless Service with the addresses of
its ready pods, `HOST.NAME.NAMESPACE.svc...` with the address of one pod by its hostname, and
`A-B-C-D.NAMESPACE.pod...` with A.B.C.D.
All other names do not exist: nothing outside this machine is reachable.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import cast

from tests.kubernetes.cluster.api_client import DELETED, ApiClient
from tests.kubernetes.kubelet.environment import Json

DOMAIN = ".cluster.local"
TTL_S = 2
A, IN, NOERROR, NXDOMAIN = 1, 1, 0, 3


class ServiceNames:
    """Follows Services and EndpointSlices."""

    def __init__(self) -> None:
        self.services: dict[tuple[str, str], Json] = {}
        self.slices: dict[str, Json] = {}

    async def follow(self, client: ApiClient) -> None:
        """Follow without end."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_services(client))
            group.create_task(self._follow_slices(client))

    async def _follow_services(self, client: ApiClient) -> None:
        async for kind, item in client.watch("/api/v1/services"):
            key = (item["metadata"]["namespace"], item["metadata"]["name"])
            if kind == DELETED:
                self.services.pop(key, None)
            else:
                self.services[key] = item

    async def _follow_slices(self, client: ApiClient) -> None:
        async for kind, item in client.watch("/apis/discovery.k8s.io/v1/endpointslices"):
            if kind == DELETED:
                self.slices.pop(item["metadata"]["uid"], None)
            else:
                self.slices[item["metadata"]["uid"]] = item

    def look_up(self, name: str) -> list[str] | None:
        """Addresses; None if the name does not exist."""
        name = name.rstrip(".").lower()
        if not name.endswith(DOMAIN):
            return None
        parts = name.removesuffix(DOMAIN).split(".")
        if parts[-1] == "pod" and len(parts) == 3:
            return [parts[0].replace("-", ".")]
        if parts[-1] != "svc" or len(parts) not in (3, 4):
            return None
        *host, service_name, namespace, _ = parts
        service = self.services.get((namespace, service_name))
        if service is None:
            return None
        address = service["spec"].get("clusterIP")
        if not host and address not in (None, "", "None"):
            return [address]
        return self._pods(namespace, service_name, host[0] if host else None, service) or None

    def endpoints(self, namespace: str, service_name: str, port_name: str) -> list[tuple[str, int]]:
        """(address, port) of each ready pod of a Service."""
        return [
            (address, port["port"])
            for item in self.slices.values()
            if item["metadata"]["namespace"] == namespace
            and item["metadata"].get("labels", {}).get("kubernetes.io/service-name") == service_name
            for endpoint in item.get("endpoints") or ()
            if endpoint.get("conditions", {}).get("ready", True)
            for port in item.get("ports") or ()
            if (port.get("name") or "") == port_name
            for address in endpoint["addresses"]
        ]

    def _pods(self, namespace: str, service_name: str, host: str | None, service: Json) -> list[str]:
        unready = service["spec"].get("publishNotReadyAddresses", False)
        return [
            address
            for item in self.slices.values()
            if item["metadata"]["namespace"] == namespace
            and item["metadata"].get("labels", {}).get("kubernetes.io/service-name") == service_name
            for endpoint in item.get("endpoints") or ()
            if unready or endpoint.get("conditions", {}).get("ready", True)
            if host is None or endpoint.get("hostname") == host
            for address in endpoint["addresses"]
        ]


def answer(request: bytes, look_up: Callable[[str], list[str] | None]) -> bytes:
    """The response to one query: A records; other types have no records."""
    number, flags = struct.unpack_from("!HH", request)
    name, end = _name(request, 12)
    kind, _ = struct.unpack_from("!HH", request, end)
    question = request[12 : end + 4]
    addresses = look_up(name)
    code = NXDOMAIN if addresses is None else NOERROR
    found = addresses if addresses and kind == A else []
    header = struct.pack("!HHHHHH", number, 0x8480 | (flags & 0x0100) | code, 1, len(found), 0, 0)
    records = b"".join(struct.pack("!HHHIH", 0xC00C, A, IN, TTL_S, 4) + socket.inet_aton(each) for each in found)
    return header + question + records


def _name(request: bytes, start: int) -> tuple[str, int]:
    labels = []
    while length := request[start]:
        labels.append(request[start + 1 : start + 1 + length].decode("ascii", "replace"))
        start += 1 + length
    return ".".join(labels), start + 1


class DnsServer(asyncio.DatagramProtocol):
    """Answers from `names`."""

    def __init__(self, names: ServiceNames) -> None:
        self._names = names

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Called by asyncio. A packet that is no query is dropped."""
        try:
            self._transport.sendto(answer(data, self._names.look_up), addr)
        except (struct.error, IndexError):
            return
