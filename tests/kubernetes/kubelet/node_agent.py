"""The nodes: their objects and heartbeats, and a worker for each pod that is bound to one of them.

Place: started by cluster/services.py, as one task for all nodes.
Invariant: each pod has one worker from its binding to the removal of its object.
"""

from __future__ import annotations

import asyncio
import datetime
from dataclasses import dataclass
from pathlib import Path

from tests.kubernetes.cluster.api_client import DELETED, ApiClient, ApiError
from tests.kubernetes.kubelet.images import ACCOUNTS_FILE, COMMANDS_FOLDER, write_accounts, write_commands
from tests.kubernetes.kubelet.network import PodNetworks
from tests.kubernetes.kubelet.pod_objects import PodObjects
from tests.kubernetes.kubelet.pod_worker import PodWorker

HEARTBEAT_S = 10.0


@dataclass(frozen=True, slots=True)
class Node:
    """`address`: an address of the test's own namespace."""

    name: str
    zone: str
    address: str


NODES = (
    Node("node-a", "zone-a", "10.79.0.1"),
    Node("node-b", "zone-b", "10.79.0.2"),
    Node("node-c", "zone-c", "10.79.0.3"),
)


class NodeAgent:
    """`folder`: for logs; `files`: for volumes and overlays."""

    def __init__(self, client: ApiClient, resolver: str, folder: Path, files: Path) -> None:
        self._client = client
        self._objects = PodObjects(client, resolver)
        self._networks = PodNetworks()
        self._folder, self._files = folder, files
        write_commands(files / COMMANDS_FOLDER)
        write_accounts(files / ACCOUNTS_FILE)
        self._workers: dict[str, PodWorker] = {}

    async def register(self) -> None:
        """Create the nodes."""
        for node in NODES:
            labels = {
                "kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/zone": node.zone, "topology.kubernetes.io/region": "test",
            }  # fmt: skip
            body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name, "labels": labels}}
            await self._client.create("/api/v1/nodes", body)
            await self._report(node)

    async def run(self) -> None:
        """Heartbeats and pods, without end."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._heartbeats())
            group.create_task(self._follow_pods())

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for node in NODES:
                try:
                    await self._report(node)
                except (ApiError, OSError):
                    continue  # the next one may succeed

    async def _report(self, node: Node) -> None:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        resources = {"cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi"}
        condition = {
            "type": "Ready", "status": "True", "reason": "KubeletReady",
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        }  # fmt: skip
        status = {
            "capacity": resources, "allocatable": resources, "conditions": [condition],
            "addresses": [{"type": "InternalIP", "address": node.address}, {"type": "Hostname", "address": node.name}],
            "nodeInfo": {
                "kubeletVersion": "v1.36.3", "operatingSystem": "linux", "architecture": "amd64",
                "machineID": node.name, "systemUUID": node.name, "bootID": node.name,
                "kernelVersion": "test", "osImage": "test",
                "containerRuntimeVersion": "process://1", "kubeProxyVersion": "",
            },
        }  # fmt: skip
        await self._client.patch(f"/api/v1/nodes/{node.name}/status", {"status": status})

    async def _follow_pods(self) -> None:
        by_name = {node.name: node for node in NODES}
        async for kind, pod in self._client.watch("/api/v1/pods", "fieldSelector=spec.nodeName!="):
            uid = pod["metadata"]["uid"]
            if kind == DELETED:
                worker = self._workers.pop(uid, None)
                if worker:
                    worker.vanish()
            elif uid in self._workers:
                self._workers[uid].update(pod)
            elif pod["spec"]["nodeName"] in by_name and pod.get("status", {}).get("phase") in (None, "Pending"):
                host = by_name[pod["spec"]["nodeName"]].address
                worker = PodWorker(pod, self._client, self._objects, self._networks, host, self._folder, self._files)
                self._workers[uid] = worker
                worker.update(pod)
