"""The files of examples/ as tests run them: the same lines, with other addresses, names and folders.

Place: under the tests of the applications that docs/INTEGRATIONS.md shows.
Invariant: only what a file has can be changed in it, so a test does not repair an example.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def settings(name: str) -> dict[str, str]:
    """The lines `name=value` of a properties file, or of one with environment variables."""
    lines = (EXAMPLES / name).read_text(encoding="utf-8").splitlines()
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def changed(found: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """Return the file with other values; AssertionError for a name that is not in it."""
    unknown = changes.keys() - found.keys()
    assert not unknown, f"not in the example: {sorted(unknown)}"
    return {**found, **changes}


def properties(name: str, path: Path, changes: Mapping[str, str], added: Mapping[str, str]) -> Path:
    """Write a changed copy. `added`: settings that are not in the example, to make a test faster."""
    lines = changed(settings(name), changes)
    assert not lines.keys() & added.keys()
    path.write_text("".join(f"{key}={value}\n" for key, value in {**lines, **added}.items()))
    return path


def json_object(name: str, changes: Mapping[str, str]) -> dict[str, str]:
    """A file with one JSON object, with other values."""
    return changed(json.loads((EXAMPLES / name).read_text(encoding="utf-8")), changes)


def text(name: str, changes: Mapping[str, str]) -> str:
    """A file's text with other words; AssertionError for words that are not in it."""
    found = (EXAMPLES / name).read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in found, f"not in the example: {old}"
        found = found.replace(old, new)
    return found
