"""`make release`: wheel, sdist and packaged chart in dist/, all with one version.

Place: run by people who publish a release, from a clean checkout.
Invariant: nothing is built unless pyproject.toml, the chart, the images and the newest entry of CHANGELOG.md name the
same version, and no version that it allows or pins is known to be vulnerable (advisories.py).
"""

from __future__ import annotations

import datetime
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import advisories

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "helm" / "headrace"
TOOLS = Path(os.environ.get("HEADRACE_TEST_TOOLS", "~/.cache/headrace-test-tools")).expanduser() / "bin"


def versions(root: Path = ROOT) -> dict[str, str]:
    """The version that each file names."""
    chart = (root / "deploy/helm/headrace/Chart.yaml").read_text(encoding="utf-8")
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    return {
        "pyproject.toml": tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"],
        "Chart.yaml version": _found(r"^version: (\S+)", chart),
        "Chart.yaml appVersion": _found(r"^appVersion: (\S+)", chart),
        "CHANGELOG.md": _found(r"^## (\S+)", changes),
        "Containerfile": _found(r"^ARG VERSION=(\S+)", (root / "deploy/Containerfile").read_text(encoding="utf-8")),
        "compose.yaml": _found(r"headrace:([\d.]+)\}", (root / "deploy/compose.yaml").read_text(encoding="utf-8")),
    }


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.M)
    return match[1].strip('"') if match else "none"


def main() -> int:
    """Build everything; 1 with a reason if that is not possible."""
    named = versions()
    if len(set(named.values())) > 1:
        print("error: one release, one version:", *(f"{name}: {value}" for name, value in named.items()), sep="\n  ")
        return 1
    if not advisories.check(datetime.datetime.now(datetime.UTC).date()):
        print("error: see above; requirements/advisories.json can accept an advisory, with the reason")
        return 1
    helm = shutil.which("helm", path=f"{TOOLS}{os.pathsep}{os.environ['PATH']}")
    if helm is None:
        print("error: helm is missing, and packages the chart: run `make deploy-tools`")
        return 1
    target = ROOT / "dist"
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "uv", "build", "--out-dir", str(target)], cwd=ROOT, check=True)
    subprocess.run([helm, "package", str(CHART), "--destination", str(target)], check=True)
    for file in sorted(target.iterdir()):
        print(f"{file.relative_to(ROOT)}  {file.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
