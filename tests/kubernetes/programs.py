"""The programs that `make kubernetes` needs: where they are, and how they get there.

Place: __main__.py refuses to start without them; `python -m tests.kubernetes.programs` (make kubernetes-tools) builds.
Invariant: versions and contents are pinned by go.mod and go.sum of tests/tools/kubernetes, tests/tools/etcd and
tests/tools/helm. All is installed below TOOLS.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.tools.installing import TOOLS

BIN = TOOLS / "bin"
MODULES = Path(__file__).parents[1] / "tools"
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubectl")
SYSTEM = {
    "ip": "apt-get install iproute2",
    "iptables": "apt-get install iptables",
    "unshare": "apt-get install util-linux",
    "nsenter": "apt-get install util-linux",
    "openssl": "apt-get install openssl",
    "java": "apt-get install default-jre-headless",
}
BUILD = "make kubernetes-tools (Go 1.26; about 6 minutes and 4 GB of module cache)"


def program(name: str) -> str:
    """Its path; below TOOLS first, because another kubectl on PATH may be too old."""
    own = BIN / name
    if own.exists():
        return str(own)
    places = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return shutil.which(name, path=places) or name


def missing() -> list[str]:
    """One line for each program that is absent, with the command that installs it."""
    built = [f"{name}: {BUILD}" for name in (*KUBERNETES, "etcd", "helm") if not (BIN / name).exists()]
    built += ["versitygw: make tools"] if not (BIN / "headrace-s3-server").exists() else []
    return built + [f"{name}: {how}" for name, how in SYSTEM.items() if program(name) == name]


def versions() -> list[str]:
    """Return the versions for the report."""
    commands = {
        "Kubernetes": [program("kube-apiserver"), "--version"],
        "etcd": [program("etcd"), "--version"],
        "helm": [program("helm"), "version", "--short"],
        "kernel": ["uname", "-r"],
        "Python": [sys.executable, "--version"],
    }
    found = []
    for name, command in commands.items():
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found.append(f"{name}: {(done.stdout.strip() or done.stderr.strip()).splitlines()[0]}")
    return found


def _version_flags() -> str:
    """Kubernetes' programs get their version at link time; the chart asks the API server for it."""
    (version,) = re.findall(r"k8s\.io/kubernetes (v\S+)", (MODULES / "kubernetes" / "go.mod").read_text())
    major, minor, _ = version.removeprefix("v").split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items())


def build() -> None:
    """Build what is absent. GOFLAGS may hold -p=1 to leave processors to others."""
    BIN.mkdir(parents=True, exist_ok=True)
    _build("kubernetes", {name: f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES}, _version_flags())
    _build("etcd", {"etcd": "go.etcd.io/etcd/server/v3"})
    _build("helm", {"helm": "helm.sh/helm/v3/cmd/helm"})


def _build(folder: str, packages: dict[str, str], link_flags: str = "") -> None:
    """`packages`: by the program's name."""
    for name, package in packages.items():
        if (BIN / name).exists():
            print(f"{name}: present", flush=True)
            continue
        print(f"{name}: building", flush=True)
        began = time.monotonic()
        command = ["go", "build", "-mod=readonly", "-ldflags", link_flags, "-o", str(BIN / name), package]
        subprocess.run(command, cwd=MODULES / folder, check=True)
        print(f"{name}: built in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    build()
    for line in missing():
        print(f"missing: {line}")
