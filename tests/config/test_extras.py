"""Messages about a missing extra name a command that works for what is installed."""

from __future__ import annotations

import json
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest

from headrace.config import extras
from headrace.config.extras import install_command, not_installed

ROOT = Path(__file__).resolve().parents[2]


def _install(monkeypatch: pytest.MonkeyPatch, folder: Path, recorded: dict[str, Any] | None) -> None:
    """An installed Headrace of which pip recorded this."""
    info = folder / "headrace-9.dist-info"
    info.mkdir()
    needed = ('pyarrow>=15; extra == "export"', "psycopg>=3", 'pgserver<1; extra == "embedded"')
    nested = ('headrace[embedded]; extra == "bench"', 'matplotlib>=3.9; extra == "bench"')
    lines = ["Metadata-Version: 2.4", "Name: headrace", "Version: 9", *(f"Requires-Dist: {n}" for n in needed + nested)]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    if recorded is not None:
        (info / "direct_url.json").write_text(json.dumps(recorded))
    monkeypatch.setattr(extras, "distribution", lambda name: Distribution.at(info))


def test_an_editable_checkout_is_installed_again_with_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkout = tmp_path / "a checkout"
    checkout.mkdir()
    _install(monkeypatch, tmp_path, {"url": checkout.as_uri(), "dir_info": {"editable": True}})
    assert install_command("export") == f"pip install -e '{checkout}[export]'"
    assert not_installed("pyarrow", "export").startswith("pyarrow is not installed; the extra `export` has it: pip ")


def test_a_wheel_is_installed_again_with_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel = tmp_path / "headrace-9-py3-none-any.whl"
    wheel.touch()
    _install(monkeypatch, tmp_path, {"url": wheel.as_uri(), "archive_info": {}})
    assert install_command("export") == f"pip install '{wheel}[export]'"


@pytest.mark.parametrize("recorded", [None, {"url": "file:///gone/headrace.whl", "archive_info": {}}])
def test_without_a_record_the_index_has_what_is_missing(
    recorded: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _install(monkeypatch, tmp_path, recorded)
    assert install_command("export") == "pip install 'pyarrow>=15'"
    assert install_command("bench") == "pip install 'pgserver<1' 'matplotlib>=3.9'"


def test_an_address_and_a_commit_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    git = {"url": "https://host/headrace", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    _install(monkeypatch, tmp_path, git)
    assert install_command("otel") == "pip install 'headrace[otel] @ git+https://host/headrace@abc'"


def test_publishing_is_one_line() -> None:
    assert install_command("otel", index_name="headrace") == "pip install 'headrace[otel]'"
    named = "headrace" + "["
    files = [
        path for folder in ("docs", "examples", "tests", "load", "deploy") for path in (ROOT / folder).rglob("*.*")
    ]
    files += [*(ROOT / "src/headrace").rglob("*.py"), ROOT / "README.md"]
    texts = ((path, path.read_text(encoding="utf-8")) for path in files if path.suffix in (".py", ".md", ".toml"))
    results = ROOT / "docs" / "results"
    told = [path for path, text in texts if f"install '{named}" in text and not path.is_relative_to(results)]
    assert told == [Path(__file__)], "the package index does not have it: use install_command"
