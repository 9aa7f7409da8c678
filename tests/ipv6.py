"""Whether the tests can use IPv6: an address of this machine, and a network namespace that has no other family."""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess

ONLY_IPV6 = "ip link set lo up && ip address flush dev lo && ip address add fd00::1/64 dev lo nodad"
"""Commands that leave a new network namespace one address. There is neither 127.0.0.1 nor ::1."""


@functools.cache
def has_ipv6() -> bool:
    """Say whether ::1 is an address of this machine."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@functools.cache
def has_namespaces() -> bool:
    """Say whether this user may make a network namespace."""
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("ip")):
        return False
    command = ["unshare", "--net", "sh", "-c", ONLY_IPV6]
    return subprocess.run(command, capture_output=True, timeout=300).returncode == 0
