"""One pod, from its arrival on a node to its deletion.

Place: node_agent.py makes one worker for each pod and gives it each new state of the pod.
Invariant: init containers run in order, each to its success, before the others start; a deleted pod's object is
removed only after all its processes have ended and its network namespace is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.kubernetes.cluster.api_client import STRATEGIC, ApiClient, ApiError
from tests.kubernetes.kubelet.container import Container, Sandbox
from tests.kubernetes.kubelet.endings import BackOff, grace_of, starts_again
from tests.kubernetes.kubelet.environment import Json, MissingReferenceError, environment_of
from tests.kubernetes.kubelet.images import ACCOUNTS_FILE, COMMANDS, COMMANDS_FOLDER, UnknownImageError, image_of
from tests.kubernetes.kubelet.network import PodNetworks
from tests.kubernetes.kubelet.pod_objects import PodObjects
from tests.kubernetes.kubelet.pod_status import ContainerState, pod_status
from tests.kubernetes.kubelet.volumes import fill, mounts

RETRY_S = 1.0
logger = logging.getLogger(__name__)


class _DeletedError(Exception):
    """The pod was deleted before a container could start."""


class PodWorker:
    """`folder`: for logs; `files`: for volumes and overlays."""

    def __init__(
        self,
        pod: Json,
        client: ApiClient,
        objects: PodObjects,
        networks: PodNetworks,
        host: str,
        folder: Path,
        files: Path,
    ) -> None:
        self.pod = pod
        self._client, self._objects, self._networks, self._host = client, objects, networks, host
        name = f"{pod['metadata']['namespace']}_{pod['metadata']['name']}"
        self._folder, self._files = folder / name, files / f"{name}-{pod['metadata']['uid'][:8]}"
        self._init = [ContainerState(spec) for spec in pod["spec"].get("initContainers", ())]
        self._main = [ContainerState(spec) for spec in pod["spec"]["containers"]]
        self._initialised = not self._init
        self._message = ""
        self._sandbox: Sandbox | None = None
        self._changed = asyncio.Event()
        self._deleting = asyncio.Event()
        self._running: set[Container] = set()
        self._task = asyncio.create_task(self._guarded())
        self._reporter = asyncio.create_task(self._report())

    @property
    def path(self) -> str:
        """Path of the pod's object."""
        return f"/api/v1/namespaces/{self.pod['metadata']['namespace']}/pods/{self.pod['metadata']['name']}"

    def update(self, pod: Json) -> None:
        """A new state of the object."""
        self.pod = pod
        if "deletionTimestamp" in pod["metadata"] and not self._deleting.is_set():
            self._deleting.set()
            self._changed.set()
            self._ending = asyncio.create_task(self._end())

    def vanish(self) -> None:
        """The object is gone; after a forced deletion, processes may be left."""
        self.update(self.pod | {"metadata": self.pod["metadata"] | {"deletionTimestamp": "now"}})

    async def _guarded(self) -> None:
        try:
            await self._run()
        except _DeletedError:
            pass
        except Exception as error:
            logger.exception("pod failed: pod=%s", self.path)
            self._message = repr(error)
        self._changed.set()

    async def _run(self) -> None:
        self._sandbox = await self._make_sandbox()
        self._folders = await self._until_there(self._fill_volumes)
        for state in self._init:
            await self._keep_running(
                state, "OnFailure" if self.pod["spec"].get("restartPolicy") != "Never" else "Never"
            )
            if state.exit_code != 0:
                for other in self._main:
                    other.exit_code = other.exit_code if other.exit_code is not None else 1
                self._initialised = True
                return
        self._initialised = True
        policy = self.pod["spec"].get("restartPolicy", "Always")
        await asyncio.gather(*(self._keep_running(state, policy) for state in self._main))

    async def _make_sandbox(self) -> Sandbox:
        network = await self._networks.add()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._files.mkdir(parents=True)
        hosts = self._files / "hosts"
        aliases = "".join(
            f"{each['ip']} {' '.join(each['hostnames'])}\n" for each in self.pod["spec"].get("hostAliases", ())
        )
        hosts.write_text(f"127.0.0.1 localhost\n{network.address} {self.pod['metadata']['name']}\n{aliases}")
        resolver = self._files / "resolv.conf"
        resolver.write_text(self._objects.resolver(self.pod["metadata"]["namespace"]))
        commands, accounts = self._files.parent / COMMANDS_FOLDER, self._files.parent / ACCOUNTS_FILE
        binds = [
            {"source": str(commands), "target": COMMANDS, "read_only": True},
            {"source": str(accounts), "target": "/etc/passwd", "read_only": True},
            {"source": str(hosts), "target": "/etc/hosts", "read_only": True},
            {"source": str(resolver), "target": "/etc/resolv.conf", "read_only": True},
        ]
        self.pod.setdefault("status", {})["podIP"] = network.address
        return Sandbox(self.pod, network, self._folder, self._files / "containers", binds)

    async def _fill_volumes(self) -> dict[str, Path]:
        await self._objects.read(self.pod)
        return await fill(
            self._files / "volumes", self._with_address(), self._objects.found(self.pod), self._objects.token
        )

    async def _until_there(self, step: Callable[[], Any]) -> Any:
        """Repeat while a ConfigMap or Secret is missing."""
        while True:
            if self._deleting.is_set():
                raise _DeletedError
            try:
                result = await step()
                self._message = ""
                return result
            except (MissingReferenceError, UnknownImageError, ApiError) as error:
                if self._message != str(error):
                    self._message = str(error)
                    self._changed.set()
                await asyncio.sleep(RETRY_S)

    async def _keep_running(self, state: ContainerState, policy: str) -> None:
        back_off = BackOff()
        loop = asyncio.get_running_loop()
        while not self._deleting.is_set():
            container = await self._until_there(lambda: self._make(state))
            began = loop.time()
            await container.start()
            state.running(container)
            self._running.add(container)
            self._changed.set()
            if self._deleting.is_set():  # it was deleted while this container started
                self._stop_late = asyncio.create_task(container.stop(grace_of(self.pod)))
            code = await container.wait()
            self._running.discard(container)
            again = starts_again(policy, code) and not self._deleting.is_set()
            state.ended(code, container.reason, again)
            self._changed.set()
            if not again:
                return
            pause = back_off.pause_after(loop.time() - began)
            state.waiting = "CrashLoopBackOff" if pause else "ContainerCreating"
            with suppress(TimeoutError):
                await asyncio.wait_for(self._deleting.wait(), pause)
        state.exit_code = state.exit_code if state.exit_code is not None else 137

    async def _make(self, state: ContainerState) -> Container:
        image = image_of(state.spec["image"])
        await self._objects.read(self.pod)
        pod = self._with_address()
        environment = environment_of(
            pod, state.spec, image.environment, self._objects.services(pod), self._objects.values(pod)
        )
        assert self._sandbox is not None
        binds = mounts(state.spec, self._folders)
        self._sandbox.pod = pod
        return Container(state.spec, image, environment, binds, self._sandbox, state.restarts, self._changed.set)

    def _with_address(self) -> Json:
        """The pod with its addresses, which its object may not have yet."""
        assert self._sandbox is not None
        own = {"podIP": self._sandbox.network.address, "hostIP": self._host}
        return self.pod | {"status": self.pod.get("status", {}) | own}

    async def _end(self) -> None:
        """After a deletion: stop all, remove the network, then the object."""
        grace = grace_of(self.pod)
        await asyncio.gather(*(container.stop(grace) for container in set(self._running)))
        await self._task
        self._reporter.cancel()
        with suppress(ApiError):
            await self._publish()
        if self._sandbox:
            await self._networks.remove(self._sandbox.network)
        uid = self.pod["metadata"]["uid"]
        await self._client.delete(self.path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})

    async def _report(self) -> None:
        """Write the status whenever it changed."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._publish()
            except ApiError as error:
                if error.status == 404:
                    return
                self._changed.set()
                await asyncio.sleep(RETRY_S)

    async def _publish(self) -> None:
        address = self._sandbox.network.address if self._sandbox else None
        status = pod_status(
            self.pod,
            self._init,
            self._main,
            self._initialised,
            address,
            self._host,
            self._message,
            self._deleting.is_set(),
        )
        await self._client.patch(f"{self.path}/status", {"status": status}, STRATEGIC)
