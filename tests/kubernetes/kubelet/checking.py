"""One check of a probe: an HTTP request, a TCP connection or a command in the container.

Place: container.py repeats it. The result is a bool: all failures are the same to a probe.
Invariant: a check takes no longer than its timeout; redirects are not followed; 200 to 399 is a success.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from typing import Any

from tests.kubernetes.kubelet.environment import Json
from tests.kubernetes.kubelet.probes import Probe

NSENTER = shutil.which("nsenter") or "/usr/bin/nsenter"


async def check(probe: Probe, address: str, pid: int, environment: dict[str, str], container: Json) -> bool:
    """`pid`: the container's process 1."""
    action = probe.action
    try:
        if "httpGet" in action:
            return await asyncio.wait_for(_http(action["httpGet"], address, container), probe.timeout)
        if "tcpSocket" in action:
            return await asyncio.wait_for(_tcp(action["tcpSocket"], address, container), probe.timeout)
    except (OSError, TimeoutError, ValueError):
        return False
    return await run_inside(pid, action["exec"]["command"], environment, probe.timeout) == 0


async def run_inside(pid: int, command: list[str], environment: dict[str, str], timeout_s: float) -> int:
    """The command's exit status in the container's namespaces, as its user; 124 if it takes longer."""
    if pid == 0:
        return 1
    process = await asyncio.create_subprocess_exec(
        *enter(pid), *command, env=environment, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        return await asyncio.wait_for(process.wait(), timeout_s)
    except TimeoutError:
        return 124
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()


def enter(pid: int) -> list[str]:
    """Return what runs a command in the namespaces of this process of a container, as its user."""
    return [
        NSENTER, "--target", str(pid), "--mount", "--net", "--pid", "--uts", "--root", "--wd",
        "--setuid=" + _id(pid, "Uid"), "--setgid=" + _id(pid, "Gid"), "--",
    ]  # fmt: skip


def port_of(port: int | str, container: Json) -> int:
    """A port's number, by its name in the container's spec."""
    if isinstance(port, int):
        return port
    numbers = {each["name"]: each["containerPort"] for each in container.get("ports", ()) if "name" in each}
    if port not in numbers:
        raise ValueError(f"container {container['name']} has no port {port}")
    return int(numbers[port])


async def _http(action: dict[str, Any], address: str, container: Json) -> bool:
    port = port_of(action["port"], container)
    reader, writer = await asyncio.open_connection(action.get("host", address), port)
    try:
        path = action.get("path", "/")
        lines = [f"GET {path} HTTP/1.1", f"Host: {address}:{port}", "User-Agent: kube-probe/1.36", "Connection: close"]
        lines += [f"{header['name']}: {header['value']}" for header in action.get("httpHeaders", ())]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        status = (await reader.readline()).split()
        return len(status) > 1 and 200 <= int(status[1]) < 400
    finally:
        writer.close()


async def _tcp(action: dict[str, Any], address: str, container: Json) -> bool:
    _, writer = await asyncio.open_connection(action.get("host", address), port_of(action["port"], container))
    writer.close()
    return True


def _id(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/status") as status:
            (line,) = (line for line in status if line.startswith(f"{name}:"))
    except OSError:
        return "0"
    return line.split()[1]
