"""A stand-in for the cloud's load balancer: an address for each Service of type LoadBalancer, and a TCP proxy.

Place: services.py starts it. It forwards to pods, as balancers do that have pods as targets (`ipMode: Proxy`, so that
kube-proxy leaves the address alone); what a balancer does with nodes and `externalTrafficPolicy` is not shown.
Invariant: a new connection goes to the next ready endpoint in turn; existing connections stay where they are.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import struct
from contextlib import suppress

from tests.kubernetes.cluster.api_client import ApiClient, ApiError
from tests.kubernetes.cluster.dns_server import ServiceNames
from tests.kubernetes.kubelet.environment import Json
from tests.kubernetes.kubelet.network import run

ADDRESSES = "198.51.100.{}"
"""TEST-NET-2 (RFC 5737)."""
PROXY_ANNOTATION = "headrace.test/proxy-protocol"
"""`v2`: each connection to a pod begins with a header that says who the client is, as clouds' annotations have it."""
LOOK_S = 0.5
CONNECT_S = 2.0
CHUNK_BYTES = 1 << 18


class LoadBalancer:
    """Follows `names`."""

    def __init__(self, client: ApiClient, names: ServiceNames) -> None:
        self._client, self._names = client, names
        self._numbers = itertools.count(10)
        self._turn = itertools.count()
        self._addresses: dict[tuple[str, str], str] = {}
        """(namespace, name) keeps its address when the Service is made again."""
        self._servers: dict[tuple[str, str, int], asyncio.Server] = {}

    async def run(self) -> None:
        """Run without end."""
        while True:
            wanted = {
                key: item for key, item in self._names.services.items() if item["spec"].get("type") == "LoadBalancer"
            }
            for key, service in wanted.items():
                with suppress(ApiError):  # it changed or is gone: look again
                    await self._serve(key, service)
            for place in [place for place in self._servers if place[:2] not in wanted]:
                self._servers.pop(place).close()
            await asyncio.sleep(LOOK_S)

    async def _serve(self, key: tuple[str, str], service: Json) -> None:
        if key not in self._addresses:
            self._addresses[key] = ADDRESSES.format(next(self._numbers))
            run("ip", "address", "add", f"{self._addresses[key]}/32", "dev", "lo")
        address = self._addresses[key]
        for port in service["spec"]["ports"]:
            place = (*key, port["port"])
            if place not in self._servers:
                self._servers[place] = await asyncio.start_server(
                    self._forwarder(key, port.get("name", "")), address, port["port"]
                )
        if not service.get("status", {}).get("loadBalancer", {}).get("ingress"):
            path = f"/api/v1/namespaces/{key[0]}/services/{key[1]}/status"
            await self._client.patch(
                path, {"status": {"loadBalancer": {"ingress": [{"ip": address, "ipMode": "Proxy"}]}}}
            )

    def _forwarder(self, key: tuple[str, str], port_name: str):  # type: ignore[no-untyped-def]
        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            targets = self._names.endpoints(*key, port_name)
            for _ in range(len(targets)):
                host, port = targets[next(self._turn) % len(targets)]
                try:
                    inner = await asyncio.wait_for(asyncio.open_connection(host, port), CONNECT_S)
                except (OSError, TimeoutError):
                    continue
                if self._names.services[key]["metadata"].get("annotations", {}).get(PROXY_ANNOTATION) == "v2":
                    inner[1].write(proxy_header(writer.get_extra_info("peername"), writer.get_extra_info("sockname")))
                await asyncio.gather(_copy(reader, inner[1]), _copy(inner[0], writer))
                return
            writer.close()

        return forward


def proxy_header(client: tuple[str, int], here: tuple[str, int]) -> bytes:
    """PROXY protocol, version 2, for TCP over IPv4."""
    addresses = b"".join(ipaddress.IPv4Address(host).packed for host, _ in (client, here))
    return (
        struct.pack("!12sBBH", b"\r\n\r\n\0\r\nQUIT\n", 0x21, 0x11, 12)
        + addresses
        + struct.pack("!HH", client[1], here[1])
    )


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the sender ends."""
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()
