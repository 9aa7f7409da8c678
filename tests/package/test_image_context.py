"""What the image's build gets of the repository."""

from __future__ import annotations

from tests.package.distribution import ROOT


def test_the_build_gets_every_package_and_not_the_tests() -> None:
    listed = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copied = {line.removeprefix("!") for line in listed if line.startswith("!")}
    linked = {path.name for path in (ROOT / "src" / "headrace").iterdir() if path.is_symlink()}
    assert linked <= copied
    assert not {"tests", "load", "docs"} & copied
    assert not [name for name in copied if not (ROOT / name).exists()]
