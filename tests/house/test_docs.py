"""Documents that describe the code are compared with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kio.schema.index import api_key_map

from agent.protocol.api_table import WHY_NOT, with_table
from agent.protocol.api_versions import APIS
from config import topic_docs
from config.docs import markdown

ROOT = Path(__file__).resolve().parents[2]


def test_configuration_page_is_what_the_settings_say() -> None:
    page = (ROOT / "docs" / "CONFIGURATION.md").read_text(encoding="utf-8")
    assert page == markdown(), "run `make docs`"


def test_configs_page_is_what_the_tables_say() -> None:
    page = (ROOT / "docs" / "TOPIC_CONFIGS.md").read_text(encoding="utf-8")
    assert page == topic_docs.markdown(), "run `make docs`"


def test_the_table_of_apis_is_what_is_served() -> None:
    page = (ROOT / "docs" / "COMPATIBILITY.md").read_text(encoding="utf-8")
    assert page == with_table(page), "run `make docs`"
    assert not APIS.keys() & WHY_NOT.keys(), "served, and yet there is a reason why not"
    with pytest.raises(ValueError, match="markers"):
        with_table("a page without a table")


def test_every_api_of_kafkas_is_served_or_has_a_reason() -> None:
    assert api_key_map.keys() <= APIS.keys() | WHY_NOT.keys()


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
        "docs/GROUPS.md",
        "docs/GLOSSARY.md",
        "docs/COMPATIBILITY.md",
        "docs/TOPIC_CONFIGS.md",
    ):
        text = (ROOT / page).read_text(encoding="utf-8")
        for path in re.findall(r"`((?:[a-z_.]+/)+[A-Za-z_.]*)`", text):
            assert (ROOT / path).exists(), f"{page} names {path}, which is not there"
