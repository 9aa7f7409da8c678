"""Known vulnerabilities of what Headrace is installed with: `python deploy/advisories.py`, and part of `make release`.

    .venv/bin/python deploy/advisories.py                   # check; 1 if a version is vulnerable
    curl -O https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip
    .venv/bin/python deploy/advisories.py renew all.zip     # write requirements/advisories.json again

Place: compares requirements/*.lock, and the lowest versions that pyproject.toml allows, with a file of advisories. No
network: a release can be built and checked offline, and again later with the same result.
Invariant: a vulnerable version fails, unless the file accepts the advisory with a reason. An old file, or one that was
not renewed from the whole database, is a warning: it proves less, and the output says how much.
Source: https://ossf.github.io/osv-schema (the form of an advisory).
"""

from __future__ import annotations

import datetime
import json
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "requirements" / "advisories.json"
OLD_DAYS = 90
_NOT_RUN = frozenset({"test", "demo", "bench"})
"""Extras of pyproject.toml that nothing in production has."""
_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;#]+)", re.M)
Advisory = dict[str, Any]


class Used(NamedTuple):
    """A version that may be installed, and the file that says so."""

    where: str
    package: str
    version: Version


def pins(path: Path) -> Iterator[Used]:
    """Yield the pins of a lock file."""
    for name, version in _PIN.findall(path.read_text(encoding="utf-8")):
        yield Used(path.name, canonicalize_name(name), Version(version))


def floors(pyproject: Path) -> Iterator[Used]:
    """The lowest version of each dependency that production may have."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = [
        each for name, found in project["optional-dependencies"].items() if name not in _NOT_RUN for each in found
    ]
    for requirement in map(Requirement, [*project["dependencies"], *extras]):
        for specifier in requirement.specifier:
            if specifier.operator in (">=", "==", "~="):
                name = canonicalize_name(requirement.name)
                yield Used(f"{pyproject.name} allows", name, Version(specifier.version))


def is_affected(version: Version, advisory: Advisory, package: str) -> bool:
    """Return whether the version is affected, by its ranges and lists of versions."""
    for affected in advisory["affected"]:
        if canonicalize_name(affected["package"]["name"]) != package:
            continue
        if str(version) in affected.get("versions", ()):
            return True
        if any(_is_within(version, span["events"]) for span in affected.get("ranges", ()) if span["type"] != "GIT"):
            return True
    return False


def _is_within(version: Version, events: Iterable[dict[str, str]]) -> bool:
    """Return whether the version is between an `introduced` and what ends it."""
    inside = False
    for event in sorted(events, key=lambda event: Version(next(iter(event.values())))):
        if "introduced" in event:
            inside = inside or version >= Version(event["introduced"])
        elif "fixed" in event:
            inside = inside and version < Version(event["fixed"])
        elif "last_affected" in event:
            inside = inside and version <= Version(event["last_affected"])
    return inside


def findings(used: Iterable[Used], known: dict[str, Any]) -> list[str]:
    """One line for each vulnerable version."""
    found = []
    for where, package, version in used:
        for advisory in known["advisories"]:
            names = [advisory["id"], *advisory.get("aliases", ())]
            if is_affected(version, advisory, package) and not known["accepted"].keys() & set(names):
                said = f"{where} {package} {version}: {', '.join(names)}: {advisory.get('summary', '')}"
                found.append(said.rstrip(": "))
    return found


def warnings(known: dict[str, Any], today: datetime.date) -> list[str]:
    """Return what the check does not prove."""
    days = (today - datetime.date.fromisoformat(known["date"])).days
    told = []
    if days > OLD_DAYS:
        told.append(f"the advisories are {days} days old: renew them (deploy/advisories.py says how)")
    if not known["complete"]:
        told.append(
            "the advisories are a selection, not the whole database: renew them (deploy/advisories.py says how)"
        )
    return told


def selected(database: Path, packages: set[str], today: datetime.date) -> dict[str, Any]:
    """The advisories of these packages in OSV's archive, without those that were withdrawn."""
    kept: list[Advisory] = []
    with zipfile.ZipFile(database) as archive:
        for name in sorted(archive.namelist()):
            advisory = json.loads(archive.read(name))
            affected = [
                {field: each[field] for field in ("package", "ranges", "versions") if field in each}
                for each in advisory.get("affected", ())
                if each.get("package", {}).get("ecosystem") == "PyPI"
                and canonicalize_name(each["package"]["name"]) in packages
            ]
            if affected and not advisory.get("withdrawn"):
                named = {field: advisory[field] for field in ("id", "aliases", "summary") if field in advisory}
                kept.append(named | {"affected": affected})
    return {"date": today.isoformat(), "source": "https://osv.dev, PyPI", "complete": True, "advisories": kept}


def in_use(root: Path = ROOT) -> list[Used]:
    """Everything that is compared."""
    locks = sorted((root / "requirements").glob("*.lock"))
    return [*(used for lock in locks for used in pins(lock)), *floors(root / "pyproject.toml")]


def check(today: datetime.date, root: Path = ROOT) -> bool:
    """Print what was found; whether there is no vulnerable version."""
    known = json.loads((root / "requirements" / "advisories.json").read_text(encoding="utf-8"))
    used = in_use(root)
    found = findings(used, known)
    packages = {canonicalize_name(a["package"]["name"]) for each in known["advisories"] for a in each["affected"]}
    both = len(packages & {each.package for each in used})
    count = f"{len(known['advisories'])} advisories of {known['date']} about {both} of {len({u.package for u in used})}"
    print(f"known vulnerabilities: {len(found)} ({count} packages; source: {known['source']})")
    for line in warnings(known, today):
        print(f"warning: {line}")
    for line in found:
        print(f"error: {line}")
    return not found


def main(words: list[str]) -> int:
    """Check, or renew the file."""
    today = datetime.datetime.now(datetime.UTC).date()
    if words[:1] == ["renew"] and len(words) == 2:
        known = selected(Path(words[1]), {each.package for each in in_use()}, today)
        known["accepted"] = json.loads(FILE.read_text(encoding="utf-8"))["accepted"]
        FILE.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    elif words:
        print(__doc__)
        return 2
    return 0 if check(today) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
