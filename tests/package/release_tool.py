"""Programs of deploy/ as modules: release.py, advisories.py, licences.py. deploy/ is no package."""

from __future__ import annotations

import importlib
import sys

from tests.package.distribution import ROOT

sys.path.append(str(ROOT / "deploy"))
try:
    advisories = importlib.import_module("advisories")
    licences = importlib.import_module("licences")
    release = importlib.import_module("release")
finally:
    sys.path.remove(str(ROOT / "deploy"))
