"""The machine inside the namespaces: addresses, stores, control plane, then the scenarios.

Place: __main__.py starts it as process 1 of new network, mount and process namespaces.
Invariant: nothing here touches the machine's own network or mounts; all ends with this process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.kubernetes.cluster.control_plane import ControlPlane
from tests.kubernetes.cluster.stores import ACCESS_KEY, BUCKET, SECRET_KEY, Stores
from tests.kubernetes.kubelet.network import HOST, OUTSIDE, cable, run
from tests.kubernetes.kubelet.node_agent import NODES


def prepare_network() -> None:
    """Addresses of this host and of the nodes, forwarding, and a namespace for clients outside the cluster."""
    run("ip", "link", "set", "lo", "up")
    for address in (HOST, *(node.address for node in NODES)):
        run("ip", "address", "add", f"{address}/32", "dev", "lo")
    for name in ("ip_forward", "conf/all/route_localnet", "conf/default/route_localnet"):
        Path("/proc/sys/net/ipv4", name).write_text("1")
    cable("outside", OUTSIDE)
    for network in ("10.77.0.0/16", "10.96.0.0/16", f"{HOST}/32"):  # no route to pods, Services and stores
        run("ip", "-n", "outside", "route", "add", "unreachable", network)


def main(folder: Path, arguments: list[str]) -> int:
    """The status of the scenarios; with `--serve` instead of scenarios, wait until standard input ends."""
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    for name in ("memory", "pods", "metrics"):
        (folder / name).mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", str(folder / "memory"))
    prepare_network()
    began = time.monotonic()
    with Stores(folder) as stores, ControlPlane(folder):
        state = json.loads((folder / "cluster.json").read_text())
        state |= {"metastore_url": stores.metastore_url, "metastore": stores.metastore}
        state |= {"postgres_port": stores.postgres_port, "s3_url": stores.s3_url, "bucket": BUCKET}
        state |= {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
        (folder / "cluster.json").write_text(json.dumps(state))
        print(
            f"control plane, kubelet, Postgres and S3 started in {time.monotonic() - began:.0f} s: {folder}", flush=True
        )
        if arguments == ["--serve"]:
            sys.stdin.read()
            return 0
        command = [sys.executable, "-u", "-m", "tests.kubernetes.scenarios", str(folder), *arguments]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
