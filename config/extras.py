"""How to add an extra of pyproject.toml to the Headrace that is installed.

Place: every message about a missing dependency ends with this text; nothing else says how to install Headrace.
Invariant: the command works for this installation: it names the checkout, wheel or address that pip recorded (PEP 610).
If pip recorded none, it names the extra's dependencies, which the package index has; the index does not have Headrace.
"""

from __future__ import annotations

import json
import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

INDEX_NAME = ""
"""Headrace's name on the package index. It is not there yet: when it is published, this line becomes "headrace"."""
PACKAGE = "headrace"
_REQUIREMENT = re.compile(r"""^(?P<needed>[^;]+?)\s*;\s*extra\s*==\s*["'](?P<extra>[\w-]+)["']$""")


def not_installed(module: str, extra: str) -> str:
    """The message about a module of an extra that is missing."""
    return f"{module} is not installed; the extra `{extra}` has it: {install_command(extra)}"


def install_command(extra: str, index_name: str = INDEX_NAME) -> str:
    """The command that installs the extra."""
    if index_name:
        return f"pip install '{index_name}[{extra}]'"
    try:
        installed = distribution(PACKAGE)
    except PackageNotFoundError:  # the sources alone are on the path
        return f"pip install '.[{extra}]' in a checkout"
    return f"pip install {_recorded_source(installed, extra) or _dependencies(installed, extra)}"


def _recorded_source(installed: Distribution, extra: str) -> str | None:
    """Return what pip installed, with the extra; None if pip recorded nothing, or the file is gone."""
    recorded = json.loads(installed.read_text("direct_url.json") or "{}")
    address = recorded.get("url", "")
    if version_control := recorded.get("vcs_info"):
        return f"'{PACKAGE}[{extra}] @ {version_control['vcs']}+{address}@{version_control['commit_id']}'"
    if not address.startswith("file:"):
        return f"'{PACKAGE}[{extra}] @ {address}'" if address else None
    path = unquote(urlsplit(address).path)
    if not Path(path).exists():
        return None
    editable = recorded.get("dir_info", {}).get("editable", False)
    return f"{'-e ' if editable else ''}'{path}[{extra}]'"


def _dependencies(installed: Distribution, extra: str) -> str:
    """The extra's requirements; those of another extra that it contains, too."""
    found: list[str] = []
    for match in filter(None, map(_REQUIREMENT.match, installed.requires or ())):
        if match["extra"] == extra:
            inner = re.match(rf"{PACKAGE}\[([\w,-]+)\]", match["needed"])
            found += (
                [_dependencies(installed, name) for name in inner[1].split(",")] if inner else [f"'{match['needed']}'"]
            )
    return " ".join(found)
