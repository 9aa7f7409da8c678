"""The kubelet, DNS, metrics and the load balancer, in one process.

Place: `python -m tests.kubernetes.cluster.services FOLDER`; control_plane.py starts it when the API server is ready.
Prints `ready` when pods can start.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

from tests.kubernetes.cluster.api_client import ApiClient
from tests.kubernetes.cluster.dns_server import DnsServer, ServiceNames
from tests.kubernetes.cluster.load_balancer import LoadBalancer
from tests.kubernetes.cluster.metrics_api import MetricsApi
from tests.kubernetes.kubelet.node_agent import NodeAgent


async def serve(folder: Path) -> None:
    """Serve until it is cancelled, or a part fails."""
    state = json.loads((folder / "cluster.json").read_text())
    client = ApiClient(state["api"], state["token"])
    names = ServiceNames()
    agent = NodeAgent(client, state["dns"], folder / "pods", folder / "memory" / "pods")
    await agent.register()
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: DnsServer(names), local_addr=(state["dns"], 53))
    await MetricsApi(client, state["metrics"]).start(folder / "metrics")
    print("ready", flush=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(names.follow(client))
        group.create_task(LoadBalancer(client, names).run())
        group.create_task(agent.run())


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(serve(Path(sys.argv[1])))
