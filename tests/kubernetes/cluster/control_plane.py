"""Start and stop etcd, the API server, controllers, scheduler, kube-proxy, and this test's own services.

Place: host.py runs it inside the test's namespaces.
Invariant: leaving the context ends what it started, last started first, by process id.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from ssl import CERT_NONE, SSLContext, create_default_context
from types import TracebackType

from tests.kubernetes.kubelet.network import HOST, POD_NETWORK
from tests.kubernetes.programs import program

API = f"https://{HOST}:6443"
TOKEN = "test-administrator"
ETCD = "http://127.0.0.1:2379"
SERVICES = "10.96.0.0/16"
START_S = 120.0


class ControlPlane:
    """Entered: nodes are registered and the default service account exists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []

    @property
    def kubeconfig(self) -> Path:
        """An administrator's."""
        return self.folder / "kubeconfig"

    def __enter__(self) -> ControlPlane:
        try:
            self._prepare()
            self._start_programs()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def died(self) -> str | None:
        """The name of a program that ended by itself."""
        return next((name for name, process in self._processes if process.poll() is not None), None)

    def _prepare(self) -> None:
        key, public = self.folder / "sa.key", self.folder / "sa.pub"
        openssl = program("openssl")
        subprocess.run([openssl, "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        subprocess.run([openssl, "rsa", "-in", key, "-pubout", "-out", public], check=True, capture_output=True)
        (self.folder / "tokens.csv").write_text(f'{TOKEN},administrator,1,"system:masters"\n')
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": API, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }  # fmt: skip
        self.kubeconfig.write_text(json.dumps(config))
        (self.folder / "cluster.json").write_text(
            json.dumps({"api": API, "token": TOKEN, "dns": HOST, "metrics": HOST, "kubeconfig": str(self.kubeconfig)})
        )

    def _start_programs(self) -> None:
        at = self.folder
        self._start(
            "etcd", "--data-dir", str(at / "memory" / "etcd"), "--listen-client-urls", ETCD,
            "--advertise-client-urls", ETCD,
            "--listen-peer-urls", "http://127.0.0.1:2380", "--log-level", "warn",
        )  # fmt: skip
        self._start(
            "kube-apiserver", f"--etcd-servers={ETCD}", "--bind-address=0.0.0.0", f"--advertise-address={HOST}",
            "--secure-port=6443", f"--service-account-key-file={at}/sa.pub",
            f"--service-account-signing-key-file={at}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc", f"--token-auth-file={at}/tokens.csv",
            "--authorization-mode=RBAC", f"--service-cluster-ip-range={SERVICES}", f"--cert-dir={at}/certs",
            "--enable-aggregator-routing=true", "--allow-privileged=true", "--endpoint-reconciler-type=lease",
        )  # fmt: skip
        self._wait("the API server", lambda: _is_ready(f"{API}/readyz"))
        common = f"--kubeconfig={self.kubeconfig}"
        self._start(
            "kube-controller-manager", common, f"--service-account-private-key-file={at}/sa.key",
            "--use-service-account-credentials", "--leader-elect=false", f"--root-ca-file={at}/certs/apiserver.crt",
            "--horizontal-pod-autoscaler-sync-period=2s", "--horizontal-pod-autoscaler-downscale-stabilization=5s",
            "--horizontal-pod-autoscaler-cpu-initialization-period=1s",
            "--horizontal-pod-autoscaler-initial-readiness-delay=1s", "--bind-address=127.0.0.1",
        )  # fmt: skip
        self._start("kube-scheduler", common, "--leader-elect=false", "--bind-address=127.0.0.1")
        services = self._start_python("services", "tests.kubernetes.cluster.services", str(at))
        self._wait("the kubelet", lambda: "ready" in services.read_text())
        self._start(
            "kube-proxy", common, "--proxy-mode=iptables", f"--cluster-cidr={POD_NETWORK}",
            "--hostname-override=node-a",
            "--conntrack-max-per-core=0", "--healthz-bind-address=127.0.0.1:10256",
            "--metrics-bind-address=127.0.0.1:10249", "--iptables-min-sync-period=200ms",
        )  # fmt: skip
        account = f"{API}/api/v1/namespaces/default/serviceaccounts/default"
        self._wait("the controllers", lambda: _is_ready(account))

    def _start(self, name: str, *arguments: str) -> Path:
        return self._launch(name, [program(name), *arguments])

    def _start_python(self, name: str, module: str, *arguments: str) -> Path:
        return self._launch(name, [sys.executable, "-u", "-m", module, *arguments])

    def _launch(self, name: str, command: list[str]) -> Path:
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        self._processes.append((name, process))
        return log

    def _wait(self, what: str, is_there: Callable[[], bool]) -> None:
        until = time.monotonic() + START_S
        while not is_there():
            if name := self.died():
                tail = (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{name} ended:\n{tail}")
            if time.monotonic() > until:
                raise RuntimeError(f"{what} did not start in {START_S:.0f} s; see {self.folder}")
            time.sleep(0.1)

    def _stop(self) -> None:
        for _, process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_ready(url: str) -> bool:
    context: SSLContext = create_default_context()
    context.check_hostname, context.verify_mode = False, CERT_NONE
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    try:
        with urllib.request.urlopen(request, timeout=5, context=context) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
