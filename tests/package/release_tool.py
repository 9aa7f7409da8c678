"""deploy/release.py and deploy/advisories.py as modules: deploy/ is no package, and they are run as programs."""

from __future__ import annotations

import importlib
import sys

from tests.package.distribution import ROOT

sys.path.append(str(ROOT / "deploy"))
try:
    advisories = importlib.import_module("advisories")
    release = importlib.import_module("release")
finally:
    sys.path.remove(str(ROOT / "deploy"))
