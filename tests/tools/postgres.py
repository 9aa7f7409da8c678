"""Postgres of each supported major version, and PgBouncer: where they are on this machine.

Place: for tests that run the metastore on every version.
A version is Headrace's extra `embedded`, the distribution's, or a build from Maven Central below TOOLS.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path

from headrace.metastore.postgres.installation import Installation, installations
from tests.tools.installing import TOOLS, InstallError, run

BUILDS = {15: "15.14.0", 16: "16.10.0", 17: "17.6.0", 18: "18.0.0"}
"""Version of the build on Maven Central, by major version."""
_GROUP = "io.zonky.test.postgres"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64v8"}
POOLER_OLDEST = (1, 21)
"""The first PgBouncer that knows prepared statements in transaction mode."""


def find_postgres(major: int) -> Installation | None:
    """The first that is found; None if this machine has none of this major version."""
    found = installations([_home(major) / "bin"])
    return next((installation for installation in found if installation.major == major), None)


def install_postgres(major: int) -> None:
    """Install Postgres from Maven Central into TOOLS. InstallError without Maven, or on a machine that it has
    no build for.
    """
    if shutil.which("mvn") is None:
        raise InstallError("mvn not on PATH")
    architecture = _ARCHITECTURES.get(platform.machine())
    if platform.system() != "Linux" or architecture is None:
        raise InstallError(f"no build for {platform.system()} on {platform.machine()}")
    TOOLS.mkdir(parents=True, exist_ok=True)
    name = f"embedded-postgres-binaries-linux-{architecture}"
    with tempfile.TemporaryDirectory(dir=TOOLS) as directory:
        run(
            "mvn", "--quiet", "--batch-mode", "--strict-checksums",
            "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy",
            f"-Dartifact={_GROUP}:{name}:{BUILDS[major]}:jar", f"-DoutputDirectory={directory}",
        )  # fmt: skip
        (jar,) = Path(directory).glob("*.jar")
        with zipfile.ZipFile(jar) as archive:
            (packed,) = (entry for entry in archive.namelist() if entry.endswith(".txz"))
            archive.extract(packed, directory)
        unpacked = Path(directory) / "postgres"
        with tarfile.open(Path(directory) / packed) as files:
            files.extractall(unpacked, filter="data")
        unpacked.chmod(0o755)
        unpacked.rename(_home(major))


@cache
def find_pgbouncer() -> Path | None:
    """PgBouncer on PATH or below TOOLS; None if there is none that is new enough."""
    places = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin", str(TOOLS / "bin")]
    for place in places:
        program = Path(place) / "pgbouncer"
        if program.exists():
            answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
            version = re.search(r"PgBouncer (\d+)\.(\d+)", answer)
            if version and (int(version[1]), int(version[2])) >= POOLER_OLDEST:
                return program
    return None


def _home(major: int) -> Path:
    return TOOLS / f"postgres-{BUILDS[major]}"
