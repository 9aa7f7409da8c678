"""Runs the Spark tests with other versions of PySpark: `make spark-versions [VERSIONS="4.0.0 4.2.1"]`.

Place: manually, before a release and when SUPPORTED changes. Each version gets an environment below build/, with a
separate PySpark and the other packages of this one. VERSIONS_RUN keeps what was run; the table between the markers of
docs/start/SPARK.md is made of it, and a test compares them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import sysconfig
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "spark-versions"
VERSIONS_RUN = Path(__file__).with_name("versions_run.json")
PAGE = ROOT / "docs" / "start" / "SPARK.md"
BEGIN, END = "<!-- versions: written by `make spark-versions` -->", "<!-- end of versions -->"
SUPPORTED = ("4.0.0", "4.1.4", "4.2.1", "4.3.0")
"""The oldest release, and the newest of each later line."""
TESTS = ("tests/spark", "tests/compactor/test_spark.py")


def main() -> int:
    """0 if all tests passed with each version."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=SUPPORTED, help="of PySpark (%(default)s)")
    parser.add_argument("--page", action="store_true", help="only write the table")
    args = parser.parse_args()
    versions = [] if args.page else args.versions or SUPPORTED
    found = json.loads(VERSIONS_RUN.read_text())
    for version in versions:
        found[version] = run(version)
        print(version, found[version], flush=True)
        found = dict(sorted(found.items()))
        VERSIONS_RUN.write_text(json.dumps(found, indent=2) + "\n")
    PAGE.write_text(with_versions(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    return int(any(found[version]["failed"] for version in versions))


def with_versions(page: str, found: dict[str, dict[str, Any]]) -> str:
    """The page with the table of what was run."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no markers: {BEGIN} and {END}")
    rows = [
        f"| {version} | {one['passed']} | {_names(one['failed'])} | {_names(one['skipped'])} | {one['day']} |"
        for version, one in found.items()
    ]
    if not rows:
        return f"{before}{BEGIN}\n{END}{after}"
    table = "\n".join(("| PySpark | passed | failed | skipped | day |", "| --- | --- | --- | --- | --- |", *rows))
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _names(tests: list[str]) -> str:
    return ", ".join(f"`{test.removeprefix('tests.').lstrip('.')}`" for test in tests) or "none"


def run(version: str) -> dict[str, Any]:
    """Counts of one version's tests, and the names of those that failed or were skipped."""
    python = environment(version)
    report = PLACE / f"{version}.xml"
    command = [python, "-m", "pytest", "-n", "0", "-q", "-m", "not slow", f"--junit-xml={report}", *TESTS]
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, check=False)
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [_name(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [_name(case) for case in cases if case.find("skipped") is not None]
    return {
        "passed": len(cases) - len(failed) - len(skipped),
        "failed": sorted(failed),
        "skipped": sorted(skipped),
        "python": platform.python_version(),
        "day": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def environment(version: str) -> str:
    """The interpreter of an environment with this PySpark."""
    place = PLACE / version
    python = place / "bin" / "python"
    if not (place / "bin" / "spark-submit").exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        paths = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        base = Path(paths.stdout.strip()) / "base.pth"
        base.write_text(sysconfig.get_paths()["purelib"] + "\n")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--ignore-installed"]
        subprocess.run([*pip, f"pyspark=={version}"], check=True)
    return str(python)


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}.{case.get('name')}"


if __name__ == "__main__":
    sys.exit(main())
