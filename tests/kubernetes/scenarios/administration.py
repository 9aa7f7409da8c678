"""No user can log in, and the listener ADMIN of an agent's pod mends it, as KUBERNETES.md says."""

from __future__ import annotations

import socket

from tests.kubernetes.scenarios.commands import exec_in, must_be_denied
from tests.kubernetes.scenarios.release import NAME, Release
from tests.kubernetes.scenarios.secured import PASSWORDS, client_secret, failed_test

ADMIN_PORT = 9096
ADMIN = ("-b", f"127.0.0.1:{ADMIN_PORT}")
NEW_PASSWORD = "given-by-hand"


def admin_listener(release: Release) -> str:
    """After `secured`: all users are gone, so that `helm test` fails; one is made through ADMIN, and it passes."""
    pod, other = release.ready_agents()
    users = exec_in(release, pod, "headrace", "users", "list", *ADMIN)
    assert all(name in users for name in PASSWORDS), users
    exec_in(release, pod, "headrace", "users", "delete", *PASSWORDS, "--yes", *ADMIN)
    told = failed_test(release)
    assert "authentication" in told.lower(), told
    create = ("headrace", "users", "create", "admin", "--password-file", "-", *ADMIN)
    exec_in(release, other, *create, text=NEW_PASSWORD)
    client_secret(release, NEW_PASSWORD)
    output = release.helm("test", NAME, "--timeout", "2m")
    assert "Succeeded" in output, output
    _is_closed_to_others(release)
    internal = f"{pod['status']['podIP']}:9094"  # the ACL of the values is for 127.0.0.1 only
    must_be_denied("ANONYMOUS", lambda: exec_in(release, pod, "headrace", "users", "list", "-b", internal))
    return "admin was made again through ADMIN, and helm test passed; without the ACL a client is refused"


def _is_closed_to_others(release: Release) -> None:
    for pod in release.ready_agents():
        address = pod["status"]["podIP"]
        try:
            socket.create_connection((address, ADMIN_PORT), 5).close()
        except ConnectionRefusedError:
            continue
        raise AssertionError(f"ADMIN answers at {address}")
