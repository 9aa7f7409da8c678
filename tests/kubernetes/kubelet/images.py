"""Images: what a container of each gets on this machine.

Place: container.py asks by the image's name. Pure.
Invariant: an unknown image is refused (`ErrImagePull`), so that a wrong name in the chart is found.
All tags of a known image are the same checkout, but for tags that HEADRACE_TEST_CHECKOUTS names (`previous=/folder`).
"""

from __future__ import annotations

import os
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
COMMANDS = "/opt/headrace/bin"
"""Folders in which Headrace's commands are in each container."""
COMMANDS_FOLDER, ACCOUNTS_FILE = "commands", "passwd"
"""Folders below the folder of all pods' files."""
USER = 10001
"""The account of Headrace's image, unless the pod's security context names another."""
SPARK_USER, SPARK_FOLDER = 185, "/opt/spark/work-dir"
JAVA = Path("/usr/lib/jvm/default-java")


class UnknownImageError(Exception):
    """No such image here."""


@dataclass(frozen=True, slots=True)
class Image:
    """What an image's config holds."""

    entrypoint: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: int = USER


def image_of(name: str) -> Image:
    """Return the image by `registry/repository:tag` or `...@digest`."""
    repository, _, tag = name.partition("@")[0].rpartition("/")[2].partition(":")
    checkout = _checkouts().get(tag, ROOT)
    paths = f"{COMMANDS}:{BIN}:/usr/local/bin:/usr/bin:/bin"
    python = {
        "PATH": paths,
        "PYTHONPATH": f"{checkout}/src:{checkout}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": "/tmp",
    }
    if repository == "headrace":
        return Image(["headrace"], python)
    if repository == "headrace-test-client":  # always of this checkout
        return Image([sys.executable, "-u"], python | {"PYTHONPATH": f"{ROOT}/src:{ROOT}"})
    if repository == "headrace-spark":
        spark = {"SPARK_HOME": str(_spark_home()), "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(_java_home())}
        entrypoint = [sys.executable, str(Path(__file__).with_name("spark_entrypoint.py"))]
        return Image(entrypoint, python | spark, folder=SPARK_FOLDER, user=SPARK_USER)
    raise UnknownImageError(f"no image {name} on this machine: headrace, headrace-spark, headrace-test-client")


def write_commands(folder: Path) -> None:
    """The commands that an installation of Headrace has, by pyproject.toml; they run the checkout of PYTHONPATH."""
    folder.mkdir(parents=True)
    for name, target in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"].items():
        module, _, function = target.partition(":")
        path = folder / name
        path.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        path.chmod(0o755)


def write_accounts(path: Path) -> None:
    """/etc/passwd with the accounts of the images: Java and Hadoop need a name and a home for their user."""
    own = f"headrace:x:{USER}:{USER}::/tmp:/bin/sh\nspark:x:{SPARK_USER}:{SPARK_USER}::/home/spark:/bin/sh\n"
    path.write_text(Path("/etc/passwd").read_text() + own)


def open_folders() -> list[str]:
    """Folders that other accounts must be able to enter to reach Python and this checkout."""
    found = []
    for path in {BIN.resolve(), Path(sys.executable).resolve(), ROOT.resolve(), Path(sys.prefix)}:
        found += [str(folder) for folder in path.parents if str(folder) != "/" and not folder.stat().st_mode & 0o001]
    return sorted(set(found))


def _spark_home() -> Path:
    return Path(sys.prefix) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages" / "pyspark"


def _java_home() -> Path:
    if os.environ.get("JAVA_HOME"):
        return Path(os.environ["JAVA_HOME"])
    return JAVA if JAVA.exists() else Path("/usr/bin/java").resolve().parents[1]


def _checkouts() -> dict[str, Path]:
    pairs = os.environ.get("HEADRACE_TEST_CHECKOUTS", "").split(",")
    return {tag: Path(folder) for tag, _, folder in (pair.partition("=") for pair in pairs if pair)}
