"""Documents that describe the code are compared with it."""

from __future__ import annotations

import re
from pathlib import Path

from config.docs import markdown

ROOT = Path(__file__).resolve().parents[2]


def test_configuration_page_is_what_the_settings_say() -> None:
    page = (ROOT / "docs" / "CONFIGURATION.md").read_text(encoding="utf-8")
    assert page == markdown(), "run `make docs`"


def test_every_setting_has_a_meaning() -> None:
    for line in markdown().splitlines():
        if line.startswith("| `"):
            assert not line.endswith("|  |"), line


def test_paths_named_in_the_documents_exist() -> None:
    """ARCHITECTURE.md draws each box as a file: a part that was deleted must go from the page too."""
    for page in (
        "README.md",
        "CONTRIBUTING.md",
        "docs/ARCHITECTURE.md",
        "docs/OPERATIONS.md",
        "docs/CLUSTER.md",
        "docs/GLOSSARY.md",
    ):
        text = (ROOT / page).read_text(encoding="utf-8")
        for path in re.findall(r"`((?:[a-z_.]+/)+[A-Za-z_.]*)`", text):
            assert (ROOT / path).exists(), f"{page} names {path}, which is not there"
