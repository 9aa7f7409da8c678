"""A cluster without IPv4: Kafka clients, links between agents, HTTP, the command line and the console."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.compat.ipv6_cluster import RECORDS, SECONDS_MAX
from tests.ipv6 import ONLY_IPV6, has_ipv6, has_namespaces


def run(command: list[str], *arguments: str) -> dict[str, Any]:
    program = [*command, sys.executable, "-m", "tests.compat.ipv6_cluster", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=2 * SECONDS_MAX)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.mark.skipif(not has_ipv6(), reason="needs IPv6")
@pytest.mark.parametrize("address", [pytest.param("::1", marks=[pytest.mark.slow] if has_namespaces() else [])])
def test_a_cluster_on_the_loopback_address(tmp_path: Path, address: str) -> None:
    """Run by `make test` where the test below cannot run."""
    check(run([], str(tmp_path), address, address, "1"), [f"[{address}]"])


@pytest.mark.slow
@pytest.mark.skipif(not has_namespaces(), reason="needs network namespaces")
def test_a_cluster_where_there_is_no_ipv4(tmp_path: Path) -> None:
    """As in a pod of a cluster with IPv6 only: agents bind every address and advertise the pod's."""
    namespace = ["unshare", "--net", "sh", "-c", f'{ONLY_IPV6} && exec "$@"', "sh"]
    check(run(namespace, str(tmp_path), "fd00::1", "::", "2"), ["[fd00::1]"] * 2)


def check(seen: dict[str, Any], addresses: list[str]) -> None:
    assert seen["addresses"] == addresses
    assert seen["records"] == RECORDS
    assert set(seen["ready"]) == {200}
    assert "six" in seen["tool"]
    assert seen["console"]
