"""One run of a container: a process with probes, from its start to its exit.

Place: pod_worker.py makes one for each start. container_init.py makes the namespaces.
Invariant: `wait` returns after the process has ended, and each end has a reason; a failed liveness or startup probe
ends the process as a deletion does, with preStop and a grace period.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kubernetes.kubelet.checking import check, run_inside
from tests.kubernetes.kubelet.endings import DEFAULT_GRACE_S, grace_after_hook
from tests.kubernetes.kubelet.environment import Json, expand
from tests.kubernetes.kubelet.images import Image, open_folders
from tests.kubernetes.kubelet.network import PodNetwork
from tests.kubernetes.kubelet.probes import Probe, ProbeStates

INIT = Path(__file__).with_name("container_init.py")
MASKED = ["/tmp", "/run"]


@dataclass
class Sandbox:
    """What the containers of a pod have in common. `files`: on a file system that can hold an overlay's upper part."""

    pod: Json
    network: PodNetwork
    folder: Path
    files: Path
    binds: list[dict[str, Any]]
    """/etc/hosts and /etc/resolv.conf."""


@dataclass(eq=False)
class Container:
    """`changed` is called when `started` or `ready` changes."""

    spec: Json
    image: Image
    environment: dict[str, str]
    binds: list[dict[str, Any]]
    sandbox: Sandbox
    run: int
    """Counts the starts from 0."""
    changed: Callable[[], None]
    pid: int = 0
    """The process id of the process that started the container's process 1."""
    reason: str | None = None
    """Why we ended it."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.probes = ProbeStates(self.spec)
        name = f"{self.spec['name']}-{self.run}"
        self._place = self.sandbox.files / name
        self.log = self.sandbox.folder / f"{name}.log"

    async def start(self) -> None:
        """Start its process and its probes."""
        for part in ("upper", "work", "root"):
            (self._place / part).mkdir(parents=True)
        path = self._place / "spec.json"
        path.write_text(json.dumps(self._start_spec()))
        with self.log.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-IS", str(INIT), str(path),
                stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        self.pid = self._process.pid
        for kind, probe in self.probes.probes.items():
            self._spawn(self._probe(kind, probe))
        if "postStart" in self.spec.get("lifecycle", {}):
            self._spawn(self._run_hook(self.spec["lifecycle"]["postStart"], DEFAULT_GRACE_S))

    async def wait(self) -> int:
        """Its exit status."""
        code = await self._process.wait()
        for task in self._tasks:
            task.cancel()
        return code if code >= 0 else 128 - code

    async def stop(self, grace_s: float) -> None:
        """preStop, SIGTERM, the grace period, SIGKILL. Returns when the process has ended."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        hook = self.spec.get("lifecycle", {}).get("preStop")
        if hook and grace_s > 0:
            await self._run_hook(hook, grace_s)
        grace_s = grace_after_hook(grace_s, loop.time() - began)
        if grace_s > 0:
            self._signal(signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace_s)
                return
            self.reason = "GracePeriodExceeded"
        self._signal(signal.SIGKILL)
        await self._process.wait()

    @property
    def inner_pid(self) -> int:
        """Process 1 of the container, as this namespace numbers it; 0 before it has started."""
        with suppress(FileNotFoundError, ValueError):
            return int((self._place / "pid").read_text())
        return 0

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _probe(self, kind: str, probe: Probe) -> None:
        await asyncio.sleep(probe.initial_delay)
        while True:
            if kind in dict(self.probes.active()):
                success = await check(probe, self.sandbox.network.address, self.inner_pid, self.environment, self.spec)
                if self.probes.report(kind, success):
                    self.changed()
                if self.probes.must_end:
                    self.reason = f"{self.probes.must_end} probe failed"
                    grace = self.sandbox.pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
                    ending = asyncio.create_task(self.stop(grace))  # not one of _tasks, which the exit cancels
                    await asyncio.shield(ending)
                    return
            await asyncio.sleep(probe.period)

    async def _run_hook(self, hook: Json, timeout_s: float) -> None:
        if "sleep" in hook:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), min(hook["sleep"]["seconds"], timeout_s))
            return
        if "exec" in hook:
            status = await run_inside(self.inner_pid, hook["exec"]["command"], self.environment, timeout_s)
            if status != 0:
                with self.log.open("a") as log:
                    log.write(f"lifecycle hook failed: status={status} command={hook['exec']['command']}\n")
            return
        probe = Probe(0, 0, timeout_s, 1, 1, hook)
        await check(probe, self.sandbox.network.address, self.inner_pid, self.environment, self.spec)

    def _start_spec(self) -> Json:
        context = self.sandbox.pod["spec"].get("securityContext", {}) | self.spec.get("securityContext", {})
        uid = context.get("runAsUser", self.image.user)
        if uid == 0 and context.get("runAsNonRoot"):
            raise ValueError("runAsNonRoot, but the user is root")
        command = self.spec.get("command") or self.image.entrypoint
        arguments = self.spec.get("args", [])
        return {
            "root": str(self._place / "root"),
            "upper": str(self._place / "upper"),
            "work": str(self._place / "work"),
            "pid_file": str(self._place / "pid"),
            "network": self.sandbox.network.path,
            "host": self.sandbox.pod["metadata"]["name"],
            "open_folders": open_folders(),
            "masked": MASKED,
            "binds": [*self.sandbox.binds, *self.binds],
            "read_only_root": context.get("readOnlyRootFilesystem", False),
            "folder": self.spec.get("workingDir", self.image.folder),
            "uid": uid,
            "gid": context.get("runAsGroup", uid),
            "groups": [context["fsGroup"]] if "fsGroup" in context else [],
            "no_new_privileges": not context.get("allowPrivilegeEscalation", True),
            "command": [expand(part, self.environment) for part in (*command, *arguments)],
            "environment": {"HOSTNAME": self.sandbox.pod["metadata"]["name"], **self.environment},
        }


def kill(pid: int) -> None:
    """SIGKILL to process 1 of a container, a crash; `pid` is the process that started it."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)
