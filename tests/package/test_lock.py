"""requirements/runtime.lock is what a user installs; THIRD_PARTY_LICENSES.md is about the same packages."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from tests.package.distribution import ROOT, environ_without_repository, tracked
from tests.package.release_tool import advisories, licences

LOCKS = ROOT / "requirements"
SECONDS_MAX = 600


def test_a_user_gets_the_versions_that_were_tested() -> None:
    tested = {used.package: used.version for used in advisories.pins(LOCKS / "test.lock")}
    runtime = {used.package: used.version for used in advisories.pins(LOCKS / "runtime.lock")}
    assert runtime.items() <= tested.items()
    assert licences.closure("embedded") == set(runtime), "run `make lock`"
    assert not {"pytest", "pyspark", "pyarrow", "matplotlib"} & set(runtime)


def test_the_page_of_licences_is_what_is_installed() -> None:
    page = (ROOT / "THIRD_PARTY_LICENSES.md").read_text(encoding="utf-8")
    assert page == licences.page(), "run `make docs`"
    assert "| psycopg | " in page


def test_a_package_without_a_licence_is_an_error(tmp_path: Path) -> None:
    info = tmp_path / "bare-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bare\nVersion: 1\n")
    with pytest.raises(ValueError, match="bare"):
        licences.licence_of(Distribution.at(info))


@pytest.mark.slow
def test_one_command_installs_and_starts_it(tmp_path: Path) -> None:
    """`make try` in a fresh checkout, until it is ready."""
    for name in tracked():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name, follow_symlinks=False)
    process = subprocess.Popen(
        ["make", "try", "FLAGS=--port 0 --http-port 0"],
        cwd=tmp_path,
        env=environ_without_repository(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            if "package index" in line or "installing uv" in line:
                pytest.skip("needs a package index")
            if line.startswith("ready "):
                return
        pytest.fail(f"it ended: {lines}")
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(SECONDS_MAX)
        process.stdout.close()
