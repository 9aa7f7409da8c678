"""The cluster and the release of the chart, as scenarios use them: helm, kubectl, waiting, logs.

Place: made once by __main__.py; scenarios run on it in order.
Invariant: a command that fails raises CommandError with its output; waiting ends with an error that says what was last
seen.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.kubernetes.cluster.metrics_api import PORT
from tests.kubernetes.programs import BIN, program

ROOT = Path(__file__).resolve().parents[3]
CHART = Path(os.environ.get("HEADRACE_TEST_CHART", ROOT / "deploy" / "helm" / "headrace"))
NAMESPACE, NAME = "streaming", "headrace"
AGENTS = "app.kubernetes.io/component=agent"
PATHS = {
    **dict.fromkeys(("pods", "services"), "/api/v1/namespaces/{}"),
    "deployments": "/apis/apps/v1/namespaces/{}",
    "cronjobs": "/apis/batch/v1/namespaces/{}",
}
POLL_S = 0.3
Json = dict[str, Any]


class CommandError(Exception):
    """A command ended with an error; the message is its output."""


class Release:
    """`folder`: of the cluster (cluster.json, pods' logs)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state: Json = json.loads((folder / "cluster.json").read_text())
        self.values: Json = {}
        """Set by scenarios, dotted; each helm command gets all of them."""
        home = folder / "helm"
        self._environment = os.environ | {
            "KUBECONFIG": self.state["kubeconfig"], "PATH": f"{BIN}:{os.environ['PATH']}",
            "HELM_CACHE_HOME": str(home), "HELM_CONFIG_HOME": str(home), "HELM_DATA_HOME": str(home),
        }  # fmt: skip

    def run(self, *command: str, text: str | None = None, timeout_s: float = 600) -> str:
        """Its standard output; CommandError unless it succeeds."""
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, check=False, timeout=timeout_s, env=self._environment
        )
        if done.returncode:
            raise CommandError(f"{' '.join(command[:6])} …: {(done.stderr + done.stdout).strip()[-2000:]}")
        return done.stdout

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl in the release's namespace."""
        return self.run(program("kubectl"), "-n", NAMESPACE, *arguments, text=text)

    def get(self, kind: str, name: str = "", selector: str = "") -> Json:
        """An object, or a list, straight from the API: kubectl takes half a second of processor time for each."""
        path = f"{PATHS[kind].format(NAMESPACE)}/{kind}/{name}".rstrip("/")
        query = f"?{urllib.parse.urlencode({'labelSelector': selector})}" if selector else ""
        found: Json = json.loads(self._request(f"{self.state['api']}{path}{query}"))
        return found

    def _request(self, url: str, body: bytes | None = None) -> bytes:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(url, data=body, method="PUT" if body else "GET")
        request.add_header("Authorization", f"Bearer {self.state['token']}")
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=30, context=context) as response:
            text: bytes = response.read()
        return text

    def helm(self, *arguments: str) -> str:
        """Run helm in the release's namespace."""
        return self.run(program("helm"), "-n", NAMESPACE, *arguments)

    def upgrade(self, values: Mapping[str, object] | None = None, *, timeout: str = "4m", wait: bool = True) -> str:
        """Install or upgrade with all values so far and these; the former are kept if it fails."""
        wanted = self.values | dict(values or {})
        path = self.folder / "values.json"
        path.write_text(json.dumps(_nested(wanted)))
        flags = ["--wait"] if wait else []
        output = self.helm("upgrade", "--install", NAME, str(CHART), "-f", str(path), "--timeout", timeout, *flags)
        self.values = wanted
        return output

    def pods(self, selector: str) -> list[Json]:
        """All of them, ready or not."""
        found: list[Json] = self.get("pods", selector=selector)["items"]
        return found

    def ready_agents(self) -> list[Json]:
        """Not being deleted."""
        return [pod for pod in self.pods(AGENTS) if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]

    def wait_for(self, what: str, look: Callable[[], Any], timeout_s: float = 120) -> Any:
        """The first true answer of `look`."""
        until = time.monotonic() + timeout_s
        while not (found := look()):
            if time.monotonic() > until:
                raise AssertionError(f"not within {timeout_s:.0f} s: {what}; last seen: {found}")
            time.sleep(POLL_S)
        return found

    def wait_for_agents(self, count: int, timeout_s: float = 120) -> None:
        """Exactly `count` agents, all ready."""
        self.wait_for(
            f"{count} agents, all ready",
            lambda: len(self.ready_agents()) == count == len(self.pods(AGENTS)),
            timeout_s,
        )

    def set_metrics(self, cpu: str | None, custom: Mapping[str, str] | None = None) -> None:
        """Set what each pod reports to the metrics API."""
        body = json.dumps({"cpu": cpu, "custom": custom or {}}).encode()
        self._request(f"https://{self.state['metrics']}:{PORT}/set", body)

    def log(self, pod_name: str) -> str:
        """Return the log of all containers of one pod, each run."""
        place = self.folder / "pods" / f"{NAMESPACE}_{pod_name}"
        return "".join(path.read_text(errors="replace") for path in sorted(place.glob("*.log")))

    def tails(self) -> str:
        """The last lines of each pod that is not as it should be."""
        told = []
        for pod in self.get("pods")["items"]:
            if not is_ready(pod) and pod.get("status", {}).get("phase") != "Succeeded":
                name = pod["metadata"]["name"]
                lines = self.log(name).strip().splitlines()[-15:]
                about = pod.get("status", {}).get("message") or pod.get("status", {}).get("phase")
                told.append("\n      ".join([f"    pod {name}: {about}", *lines]))
        return "\n".join(told)


def is_ready(pod: Json) -> bool:
    """Its condition Ready."""
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _nested(values: Mapping[str, object]) -> Json:
    """`a/b` names b in a; settings have dots in their names."""
    nested: Json = {}
    for name, value in values.items():
        *folders, last = name.split("/")
        place = nested
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return nested
