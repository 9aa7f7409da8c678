"""`make kubernetes`: `python -m tests.kubernetes [--serve] [SCENARIO ...]`.

Without names, all scenarios run in order. `--serve` starts the cluster only, until standard input ends;
`nsenter --net --mount --pid` with the process id of tests.kubernetes.cluster.host enters it. Needs root, for
namespaces. `--logs FOLDER` keeps the logs (default build/kubernetes).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.kubernetes.programs import missing, program, versions

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """0 if all scenarios passed; 2 if something is missing."""
    parser = argparse.ArgumentParser(prog="make kubernetes", description=__doc__)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--logs", type=Path, default=ROOT / "build" / "kubernetes")
    parser.add_argument("scenarios", nargs="*")
    args = parser.parse_args()
    lines = missing() + (["root: namespaces and mounts need it"] if os.geteuid() else [])
    if lines:
        print("error: `make kubernetes` needs these:\n  " + "\n  ".join(lines), file=sys.stderr)
        return 2
    for line in versions():
        print(line, flush=True)
    folder = Path(tempfile.mkdtemp(prefix="headrace-kubernetes-"))
    folder.chmod(0o755)
    command = [
        program("unshare"), "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
        sys.executable, "-u", "-m", "tests.kubernetes.cluster.host", str(folder),
        *(["--serve"] if args.serve else args.scenarios),
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment["PATH"] = f"{environment.get('PATH', '')}:/usr/sbin:/sbin"
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        return subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode
    finally:
        _keep_logs(folder, args.logs)
        shutil.rmtree(folder, ignore_errors=True)


def _keep_logs(folder: Path, logs: Path) -> None:
    shutil.rmtree(logs, ignore_errors=True)
    for path in folder.rglob("*.log"):
        if path.is_file():
            place = logs / path.relative_to(folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)


if __name__ == "__main__":
    sys.exit(main())
