"""deploy/release.py as a module: deploy/ is no package."""

from __future__ import annotations

import importlib.util

from tests.package.distribution import ROOT

_spec = importlib.util.spec_from_file_location("release", ROOT / "deploy" / "release.py")
assert _spec is not None
assert _spec.loader is not None
release = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(release)
