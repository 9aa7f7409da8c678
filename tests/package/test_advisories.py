"""`make release` refuses versions that are known to be vulnerable, and says how much its file of advisories proves."""

from __future__ import annotations

import datetime
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from tests.package.distribution import ROOT
from tests.package.release_tool import advisories, release

pytestmark = pytest.mark.requirement("X2")
TODAY = datetime.date(2026, 11, 26)
LOCK = """\
aioboto3==15.5.0
    # via headrace (pyproject.toml)
PyJWT[crypto]==2.10.0 ; python_version < "4"
zope.interface==6.0
"""


def advisory(package: str, *events: dict[str, str], name: str = "CVE-1", **more: Any) -> dict[str, Any]:
    affected = {"package": {"ecosystem": "PyPI", "name": package}, "ranges": [{"type": "ECOSYSTEM", "events": events}]}
    return {"id": name, "aliases": ["GHSA-1"], "summary": "it breaks", "affected": [affected]} | more


def repository(folder: Path, known: dict[str, Any], floor: str = "pyjwt>=2.10.1") -> Path:
    (folder / "requirements").mkdir()
    (folder / "requirements" / "test.lock").write_text(LOCK, encoding="utf-8")
    (folder / "requirements" / "advisories.json").write_text(json.dumps(known), encoding="utf-8")
    text = f'[project]\ndependencies = ["{floor}"]\n[project.optional-dependencies]\nspark = ["pyarrow>=15"]\n'
    (folder / "pyproject.toml").write_text(text + 'test = ["pytest>=1"]\n', encoding="utf-8")
    return folder


def known(*found: dict[str, Any], date: str = "2026-11-26", complete: bool = True, **accepted: str) -> dict[str, Any]:
    return {"date": date, "source": "test", "complete": complete, "advisories": found, "accepted": accepted}


def test_nothing_here_is_known_to_be_vulnerable() -> None:
    """Of what the repository's file knows; this is what `make release` asks."""
    own = json.loads((ROOT / "requirements" / "advisories.json").read_text(encoding="utf-8"))
    assert advisories.findings(advisories.in_use(), own) == []
    assert len(own["advisories"]) > 30
    assert all(isinstance(reason, str) and len(reason) > 20 for reason in own["accepted"].values())


def test_the_lowest_versions_are_compared_too() -> None:
    """CVE-2024-53861: an installation may have the lowest version that pyproject.toml allows."""
    own = json.loads((ROOT / "requirements" / "advisories.json").read_text(encoding="utf-8"))
    floors = {used.package: used for used in advisories.floors(ROOT / "pyproject.toml")}
    assert floors["pyjwt"].version >= Version("2.10.1")
    before = [floors["pyjwt"]._replace(version=Version("2.10"))]
    (line,) = advisories.findings(before, own)
    assert "CVE-2024-53861" in line
    assert "pytest" not in floors


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ("1.9", False),
        ("2.0", True),
        ("2.1.0", True),
        ("2.1.1rc1", True),
        ("2.1.1", False),
        ("2.9", False),
        ("3.0", True),
        ("3.4", True),
        ("3.4.1", False),
        ("0.7", True),
    ],
)
def test_ranges_of_an_advisory(version: str, affected: bool) -> None:
    spans = advisory("Some_Package", {"introduced": "2.0"}, {"fixed": "2.1.1"})
    spans["affected"][0]["ranges"].append(
        {"type": "ECOSYSTEM", "events": [{"introduced": "3.0"}, {"last_affected": "3.4"}]}
    )
    spans["affected"][0]["ranges"].append({"type": "GIT", "events": [{"introduced": "0"}]})
    spans["affected"][0]["versions"] = ["0.7"]
    assert advisories.is_affected(Version(version), spans, "some-package") is affected
    assert not advisories.is_affected(Version(version), spans, "another")


def test_a_range_without_an_end_has_every_version() -> None:
    assert advisories.is_affected(Version("99"), advisory("x", {"introduced": "0"}), "x")


def test_a_vulnerable_pin_fails_and_an_accepted_one_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = advisory("pyjwt", {"introduced": "2.10.0"}, {"fixed": "2.10.1"})
    root = repository(tmp_path, known(found))
    assert not advisories.check(TODAY, root)
    assert "error: test.lock pyjwt 2.10.0: CVE-1, GHSA-1: it breaks" in capsys.readouterr().out
    file = root / "requirements" / "advisories.json"
    file.write_text(json.dumps(known(found, **{"GHSA-1": "only the tests have it"})), encoding="utf-8")
    assert advisories.check(TODAY, root)
    assert "error" not in capsys.readouterr().out


def test_a_vulnerable_floor_fails(tmp_path: Path) -> None:
    found = advisory("pyarrow", {"introduced": "0"}, {"fixed": "15.0.1"})
    assert not advisories.check(TODAY, repository(tmp_path, known(found)))


@pytest.mark.parametrize(
    ("date", "complete", "warning"),
    [
        ("2026-11-26", True, None),
        ("2026-08-28", True, None),
        ("2026-08-27", True, "91 days old"),
        ("2026-11-26", False, "a selection"),
    ],
)
def test_what_the_file_does_not_prove_is_a_warning(
    date: str, complete: bool, warning: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert advisories.check(TODAY, repository(tmp_path, known(date=date, complete=complete)))
    told = capsys.readouterr().out
    assert ("warning" in told) is (warning is not None)
    assert warning is None or warning in told
    assert f"0 (0 advisories of {date} about 0 of 4 packages; source: test)" in told


def test_the_file_is_made_of_the_whole_database(tmp_path: Path) -> None:
    other_ecosystem = advisory("pyjwt", {"introduced": "0"}, name="GO-1")
    other_ecosystem["affected"][0]["package"]["ecosystem"] = "Go"
    entries = [
        advisory("PyJWT", {"introduced": "2.10.0"}, {"fixed": "2.10.1"}, details="long", name="PYSEC-1"),
        advisory("pyjwt", {"introduced": "0"}, name="PYSEC-2", withdrawn="2025-01-01T00:00:00Z"),
        advisory("another", {"introduced": "0"}, name="PYSEC-3"),
        other_ecosystem,
    ]
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for entry in entries:
            archive.writestr(f"{entry['id']}.json", json.dumps(entry))
    made = advisories.selected(tmp_path / "all.zip", {"pyjwt"}, TODAY)
    assert (made["date"], made["complete"]) == ("2026-11-26", True)
    assert [each["id"] for each in made["advisories"]] == ["PYSEC-1"]
    assert "details" not in made["advisories"][0]
    used = [advisories.Used("lock", "pyjwt", Version("2.10.0"))]
    assert len(advisories.findings(used, made | {"accepted": {}})) == 1


def test_no_release_is_built_with_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(release.advisories, "check", lambda today: False)
    monkeypatch.setattr(release.shutil, "rmtree", lambda *args, **more: pytest.fail("it went on"))
    assert release.main() == 1
    assert "accept an advisory" in capsys.readouterr().out
