"""A network namespace with an address for each pod, and routes through the test's own namespace.

Place: pod_worker.py makes one before the first container and removes it after the last.
Invariant: all traffic of a pod goes through the test's namespace, where kube-proxy's rules apply: a pod's only route
is to GATEWAY, an address that each pod's cable has on the other side.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
from dataclasses import dataclass
from pathlib import Path

HOST = "10.88.0.1"
"""The API server, DNS, Postgres and the S3 server; an address of the test's own namespace."""
OUTSIDE = "203.0.113.5"
"""A client's address outside the cluster (TEST-NET-3, RFC 5737)."""
GATEWAY = "169.254.1.1"
POD_NETWORK = "10.77.0.0/16"
RUN = Path("/run/netns")


@dataclass(frozen=True, slots=True)
class PodNetwork:
    """`name`: of the namespace, and of the cable's end in the test's namespace."""

    name: str
    address: str

    @property
    def path(self) -> str:
        """Path for setns(2)."""
        return str(RUN / self.name)


class PodNetworks:
    """Addresses are 10.77.1.1, 10.77.1.2, ... and are not used again."""

    def __init__(self) -> None:
        self._numbers = itertools.count(257)

    async def add(self) -> PodNetwork:
        """A namespace with an address, and routes in both directions."""
        number = next(self._numbers)
        network = PodNetwork(f"pod{number - 256}", f"10.77.{number // 256}.{number % 256}")
        await asyncio.to_thread(cable, network.name, network.address)
        return network

    async def remove(self, network: PodNetwork) -> None:
        """Remove the namespace with its cable and routes; processes in it keep the namespace until they end."""
        await asyncio.to_thread(run, "ip", "netns", "delete", network.name)


def cable(name: str, address: str) -> None:
    """Make namespace `name` with `address`, and join it to this one."""
    run("ip", "netns", "add", name)
    run("ip", "-batch", "-", text=(
        f"link add {name} type veth peer name eth0 netns {name}\n"
        f"addr add {GATEWAY}/32 dev {name}\nlink set {name} up\n"
        f"route add {address}/32 dev {name} src {HOST}\n"
    ))  # fmt: skip
    run("ip", "-n", name, "-batch", "-", text=(
        f"link set lo up\naddr add {address}/32 dev eth0\nlink set eth0 up\n"
        f"route add {GATEWAY}/32 dev eth0\nroute add default via {GATEWAY} dev eth0\n"
    ))  # fmt: skip


def run(*command: str, text: str = "") -> None:
    """A short command; RuntimeError with its output if it fails."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
